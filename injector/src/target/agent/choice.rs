//! Switches functions off and on in a running process: their patches, and the starts of their thunks.

use std::collections::BTreeSet;
use std::io;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use gprofinject_abi::attach::{BYPASS_LEN, CHOICE_WORDS, Command, Order};
use gprofinject_plan::Plan;
use zerocopy::IntoBytes;

use crate::os::sys;
use crate::target::agent::attachment::{Attachment, Step};
use crate::target::agent::modules::{Modules, Plans};
use crate::target::agent::overwritten::{Overwritten, Patch};
use crate::target::agent::patches::loads;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::{Pause, Stopped};
use crate::target::threads::tracer::Tracer;

/// For how long switching is tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// Functions that are to be switched, by their numbers in their plans.
#[derive(Clone, Copy)]
pub(crate) struct Switch<'s> {
    pub(crate) off: bool,
    pub(crate) program: &'s BTreeSet<u32>,
    /// Each with the number of the library's plan.
    pub(crate) libraries: &'s [(u32, BTreeSet<u32>)],
}

/// The functions of one module of a process.
struct Piece<'s> {
    /// What [`Order::module`] is for it.
    module: u64,
    numbers: &'s BTreeSet<u32>,
}

impl Attachment {
    /// Switches functions off or on, with all threads stopped for as short a time as possible. Returns the time for which they
    /// stood still.
    ///
    /// # Errors
    /// As for [`Attachment::arm`].
    pub(crate) fn switch(&mut self, plans: Plans<'_>, switch: Switch<'_>) -> Result<Pause> {
        self.order(|attachment, _| {
            attachment.with_retries(PATIENCE, |attachment, tracer, until| {
                attachment.switch_now(plans, switch, tracer, until)
            })
        })
    }

    fn switch_now(
        &mut self,
        plans: Plans<'_>,
        switch: Switch<'_>,
        tracer: &Tracer,
        until: Instant,
    ) -> Result<Step<Pause>> {
        let memory = Memory::open(self.pid)?;
        let mut modules = self.planned_modules(plans);
        let pieces = self.pieces(plans, switch, &mut modules);
        let mut stopped = self.all(tracer)?;
        if !modules.are_those_of(self) {
            return Ok(Step::Later(loads()));
        }
        let cleared = match switch.off {
            true => self.leave_patches(&mut stopped, &memory, &modules.overwritten, until)?,
            false => self.make_room(&mut stopped, &memory, &(0..0), &modules, until)?,
        };
        if let Step::Later(error) = cleared {
            return Ok(Step::Later(error));
        }
        if !modules.are_those_of(self) {
            return Ok(Step::Later(loads()));
        }
        for piece in &pieces {
            if let Err(error) = self.switch_piece(piece, switch.off, &mut stopped, &memory) {
                return match error.raw_os_error() {
                    Some(libc::EAGAIN) => Ok(Step::Later(loads())),
                    _ => Err(anyhow!("the functions could not be switched: {}", sys::reason(&error))),
                };
            }
        }
        Ok(Step::Done(stopped.pause()))
    }

    /// Returns the functions by module, and lets `modules` contain the addresses at which bytes change.
    fn pieces<'s>(&self, plans: Plans<'_>, switch: Switch<'s>, modules: &mut Modules<'_>) -> Vec<Piece<'s>> {
        let (mut pieces, mut patches) = (Vec::new(), Vec::new());
        let mut add =
            |plan: Option<&Plan>, bias: u64, arena: u64, module: u64, numbers: &'s BTreeSet<u32>| {
                if let Some(plan) = plan.filter(|_| !numbers.is_empty()) {
                    let is_one = |number: u32| numbers.contains(&number);
                    patches.extend(
                        plan.patches_of(&is_one).filter_map(|patch| Patch::of_plan(plan, bias, patch)),
                    );
                    let thunks = plan.thunks_of(&is_one).into_iter();
                    patches.extend(thunks.map(|at| Patch::inside(arena.wrapping_add(at.into()), BYPASS_LEN)));
                    pieces.push(Piece { module, numbers });
                }
            };
        let start = self.arenas.program.start;
        if let Some(plan) = plans.program {
            add(Some(plan), start.wrapping_sub(plan.arena), start, 0, switch.program);
        }
        for record in modules.records() {
            let chosen = switch.libraries.iter().filter(|(number, _)| *number == record.plan);
            for (number, numbers) in chosen {
                let plan = plans.libraries.get(*number).and_then(|library| library.planned.plan.as_ref());
                add(plan, record.bias, record.arena, record.first_function.into(), numbers);
            }
        }
        modules.overwritten = Overwritten::new(&[], patches);
        pieces
    }

    /// Makes the agent switch the functions of a module.
    fn switch_piece(
        &self,
        piece: &Piece,
        off: bool,
        stopped: &mut Stopped,
        memory: &Memory,
    ) -> io::Result<()> {
        const AT_ONCE: u32 = 64 * CHOICE_WORDS as u32;
        let order = self.image().map_or(0, |image| image.order);
        let put = |offset: usize, bytes: &[u8]| memory.write(order + offset as u64, bytes);
        let mut rest = piece.numbers.iter().copied().peekable();
        while let Some(&next) = rest.peek() {
            let first = next / AT_ONCE * AT_ONCE;
            let mut choice = [0_u64; CHOICE_WORDS];
            while let Some(number) = rest.next_if(|number| number - first < AT_ONCE) {
                let bit = number - first;
                choice[bit as usize / 64] |= 1 << (bit % 64);
            }
            put(offset_of!(Order, module), piece.module.as_bytes())?;
            put(offset_of!(Order, first), u64::from(first).as_bytes())?;
            put(offset_of!(Order, off), u64::from(off).as_bytes())?;
            put(offset_of!(Order, choice), choice.as_bytes())?;
            self.command(stopped, memory, Command::Choose)?;
        }
        Ok(())
    }
}
