//! Runs a few instructions from a chosen state and reports the state that they leave.
//!
//! The code runs in a traced child process in which nothing is mapped except the [`Memory`] that it shares
//! with this process, so the code may do anything: system calls are stopped before they run, loops end by a
//! timer, and a jump to any other address causes a fault.

pub mod state;
mod system;

use std::marker::PhantomData;

use anyhow::Result;

use crate::machine::state::{State, Stop};
use crate::machine::system::{Child, Memory};

/// The number of bytes of each area.
pub const AREA: usize = 0x4000;

/// The offsets of the areas from the machine's base: that of the original code, that of its copy, and that of
/// the data (with the stack).
pub const ORIGINAL: u64 = 0x10_0000;
pub const COPY: u64 = 0;
pub const DATA: u64 = 0x20_0000;

/// A machine that runs code. Only the thread that has created it can use it, because the kernel lets no other
/// thread trace.
pub struct Machine {
    base: u64,
    memory: Memory,
    child: Option<Child>,
    stays: PhantomData<*const ()>,
}

impl Machine {
    /// Creates a machine. `base` is the address of the areas: 3 MiB that this process does not use.
    ///
    /// # Errors
    /// The addresses are in use, or a process cannot be traced.
    pub fn new(base: u64) -> Result<Machine> {
        let memory = Memory::map(base, &[COPY, ORIGINAL, DATA], AREA)?;
        let mut machine = Machine { base, memory, child: None, stays: PhantomData };
        machine.child()?;
        Ok(machine)
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    fn child(&mut self) -> Result<&mut Child> {
        if self.child.is_none() {
            self.child = Some(Child::start(&mut self.memory)?);
        }
        self.child.as_mut().ok_or_else(|| anyhow::anyhow!("no child"))
    }

    /// Returns the bytes of an area.
    pub fn area(&mut self, area: u64) -> &mut [u8] {
        self.memory.area(area)
    }

    /// Returns a state to start from: all zero, except what a process must have.
    ///
    /// # Errors
    /// No process can be started.
    pub fn state(&mut self) -> Result<State> {
        Ok(self.child()?.initial().clone())
    }

    /// Runs from `state`, which afterwards is the state at the stop, for about 4 ms of CPU time times
    /// `patience`.
    ///
    /// # Errors
    /// The process cannot be controlled.
    pub fn run(&mut self, state: &mut State, patience: u32) -> Result<Stop> {
        let stop = self.child()?.run(state, patience)?;
        if stop == Stop::Killed {
            self.child = None;
        }
        Ok(stop)
    }
}
