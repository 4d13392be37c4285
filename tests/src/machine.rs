//! Runs a few instructions from a chosen state and reports the state that they leave.
//!
//! The code runs in a traced child process in which nothing is mapped but the [`Memory`] that is shared
//! with it, so it may do what it likes: system calls are stopped at the door, loops end by a timer, and
//! whatever leads elsewhere stops there with a fault.

pub mod state;
mod system;

use std::marker::PhantomData;

use anyhow::Result;

use crate::machine::state::{State, Stop};
use crate::machine::system::{Child, Memory};

/// Bytes of each area.
pub const AREA: usize = 0x4000;

/// The distances of the areas from the machine's base: where the original code stands, where its copy
/// stands, and the data (with the stack).
pub const ORIGINAL: u64 = 0x10_0000;
pub const COPY: u64 = 0;
pub const DATA: u64 = 0x20_0000;

/// A machine that runs code. Only the thread that made it can use it: the kernel lets nobody else trace.
pub struct Machine {
    base: u64,
    memory: Memory,
    child: Option<Child>,
    stays: PhantomData<*const ()>,
}

impl Machine {
    /// `base` is where the areas lie: 3 MiB that this process does not use.
    ///
    /// # Errors
    /// Where they are in use, or where a process cannot be traced.
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

    /// The bytes of an area.
    pub fn area(&mut self, area: u64) -> &mut [u8] {
        self.memory.area(area)
    }

    /// A state to start from: all zero but for what a process must have.
    ///
    /// # Errors
    /// Where no process can be started.
    pub fn state(&mut self) -> Result<State> {
        Ok(self.child()?.initial().clone())
    }

    /// Runs from `state`, which then is the one at the stop, for some 4 ms of CPU time times `patience`.
    ///
    /// # Errors
    /// Where the process cannot be handled.
    pub fn run(&mut self, state: &mut State, patience: u32) -> Result<Stop> {
        let stop = self.child()?.run(state, patience)?;
        if stop == Stop::Killed {
            self.child = None;
        }
        Ok(stop)
    }
}
