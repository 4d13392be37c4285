//! Leaving a process: restores the patched text, the return addresses and the library functions, and unmaps
//! the memory.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gprofinject_abi::attach::GUARD_OUT;
use gprofinject_abi::attach::{ACCUMULATOR, Command, MAPPED_MAX, PAD};
use gprofinject_abi::plan::ThreadWords;
use libc::user_regs_struct;

use crate::os::proc::{self, Mapping};
use crate::target::agent::attachment::{Attachment, Stage, Step};
use crate::target::agent::callers::{Callers, Files};
use crate::target::agent::frames::Frames;
use crate::target::agent::overwritten::Patch;
use crate::target::agent::patches::loads;
use crate::target::agent::room::{code_of, libc_code};
use crate::target::agent::{copies, go, stacks};
use crate::target::process::Process;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::{Pause, Stopped};
use crate::target::threads::thread::Thread;
use crate::target::threads::{deadline, tracer};

/// For how long leaving is tried. Hooks that stay are worse than hooks that are not written, so this is
/// longer than the time for writing them.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
#[error("a thread stays in the agent")]
struct Stays;

impl Attachment {
    /// Leaves the process as it was. Returns the longest time for which its threads stood still, and whether
    /// nothing of the agent is left. If a thread stays in the agent's code, the memory has to stay as well.
    ///
    /// # Errors
    /// The process cannot be stopped or written to. The hooks stay.
    pub(crate) fn detach(&mut self) -> Result<(Pause, bool)> {
        self.order(|attachment, _| attachment.detach_running())
    }

    /// Leaves a process that was forked by the process of this record.
    ///
    /// # Errors
    /// As for [`Attachment::detach`].
    pub(crate) fn detach_child(mut self, process: &Process) -> Result<(Pause, bool)> {
        (self.pid, self.started, self.is_inherited) = (process.pid, process.started, true);
        self.detach()
    }

    fn detach_running(&mut self) -> Result<(Pause, bool)> {
        let mut longest = Pause::default();
        let mappings = proc::mappings(self.pid)?;
        if !self.is_among(&mappings) {
            // Another gprofinject has taken the agent out.
            self.stage = Stage::Left;
            return Ok((longest, true));
        }
        let (mut is_unpatched, mut are_copied) = (self.is_paused(), false);
        let mut files = Files::default();
        let mut code = mappings.clone();
        code.retain(|mapping| !self.arenas.contains(mapping.lo));
        files.load(self.pid, &code);
        let left = self.with_retries(PATIENCE, |attachment, tracer, until| {
            let memory = Memory::open(attachment.pid)?;
            let mut stopped = attachment.all(tracer)?;
            let step = attachment.detach_stopped(
                &mut stopped,
                &memory,
                &mut files,
                &mut is_unpatched,
                &mut are_copied,
                until,
            );
            if stopped.pause().took > longest.took {
                longest = stopped.pause();
            }
            step
        });
        match left {
            // Frames that are copied away at present will return through the thunks.
            Ok(()) if are_copied => Ok((longest, false)),
            Ok(()) => {
                let is_clean = self.unmap_running();
                if is_clean {
                    self.stage = Stage::Left;
                }
                Ok((longest, is_clean))
            }
            Err(error) if error.is::<Stays>() => Ok((longest, false)),
            // The process has executed another program meanwhile.
            Err(_) if proc::mappings(self.pid).is_ok_and(|now| !self.is_among(&now)) => Ok((longest, true)),
            Err(error) => Err(error),
        }
    }

    /// Whether anything of the agent is mapped.
    fn is_among(&self, mappings: &[Mapping]) -> bool {
        let image = self.image().map(|image| image.memory.start);
        let is_ours = |mapping: &Mapping| Some(mapping.lo) == image || self.is_in_folder(mapping);
        mappings.iter().any(is_ours)
    }

    fn is_in_folder(&self, mapping: &Mapping) -> bool {
        Path::new(mapping.named()).starts_with(&self.folder)
    }

    /// Unmaps the agent's memory. No thread can enter it any more, so all threads but one may run meanwhile.
    /// Returns false if the memory stays.
    fn unmap_running(&self) -> bool {
        let unmapped = tracer::apart(self.pid, |tracer| -> Result<()> {
            let memory = Memory::open(self.pid)?;
            self.unmap(&mut self.one(tracer)?, &memory)
        });
        // The process may have ended.
        unmapped.is_ok() || proc::mappings(self.pid).map_or(true, |mappings| mappings.is_empty())
    }

    fn detach_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &mut Files,
        is_unpatched: &mut bool,
        are_copied: &mut bool,
        until: Instant,
    ) -> Result<Step<()>> {
        if !*is_unpatched {
            return Ok(Step::Later(match self.pause_stopped(stopped, memory, until)? {
                Step::Done(()) => {
                    // Most threads that are in the agent's code leave it by themselves now and do not return
                    // to it.
                    *is_unpatched = true;
                    Stays.into()
                }
                Step::Later(error) => error,
            }));
        }
        self.wait_for_landings(memory, true)?;
        let are_out = self.get_out(stopped, memory, files, until);
        self.wait_for_landings(memory, false)?;
        if !are_out? {
            return Ok(Step::Later(Stays.into()));
        }
        // From here on, the text has the original instructions.
        for thread in &mut stopped.threads {
            let at = thread.registers.rip;
            if let Some(original) = self.original_of(at) {
                thread.move_to(original);
            }
        }
        let order = match self.command(stopped, memory, Command::Leave) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(Step::Later(loads())),
            result => result?,
        };
        // No thread is inside a thunk now, which would rely on the frame's cell.
        if let Some(shadows) = self.guest().and_then(|guest| guest.shadows) {
            let frames = Frames { memory, shadows, arenas: &self.arenas };
            let away = frames.put_back(self.pid)?;
            let labels = frames.labels(&away, &order.records_of_functions)?;
            *are_copied = copies::are_in(self.pid, &frames, &labels, &self.mapped_by_agent(memory)?)?;
        }
        // A frame that is copied back returns through its thunk, which works with the thread's record.
        if !*are_copied {
            self.take_records(stopped)?;
        }
        // Unwinders needed the detours as long as return addresses were replaced.
        for detoured in self.detours().iter().filter(|d| d.stands(memory, &d.after)) {
            memory.write(detoured.at, &detoured.before)?;
        }
        Ok(Step::Done(()))
    }

    /// Lets threads run until none is in the agent's code, or the time is over.
    fn get_out(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &mut Files,
        until: Instant,
    ) -> Result<bool> {
        const LONGEST: Duration = Duration::from_millis(4);
        let (mut turn, at_once) = stopped.turn();
        // The threads in the order of their turns, and the number of turns since their length last changed.
        let mut queue: VecDeque<i32> = VecDeque::new();
        let mut turns = 0;
        let mut mappings = proc::mappings(self.pid)?;
        let rest = self.staying_patches(memory);
        loop {
            for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
                deadline::check()?;
                self.take_from_landing(thread, memory)?;
                thread.fresh = self.is_here(thread, memory, &mappings, &rest, files);
            }
            let here: HashSet<i32> = stopped.threads.iter().filter(|t| t.fresh).map(|t| t.tid).collect();
            let left = until.saturating_duration_since(Instant::now());
            if here.is_empty() || left.is_zero() {
                return Ok(here.is_empty());
            }
            queue.retain(|tid| here.contains(tid));
            let known: HashSet<i32> = queue.iter().copied().collect();
            queue.extend(here.difference(&known));
            if turns >= queue.len() {
                turns = 0;
                turn = (turn * 2).min(LONGEST);
            }
            let chosen: Vec<i32> = queue.iter().copied().take(at_once).collect();
            queue.rotate_left(chosen.len());
            turns += chosen.len();
            if !stopped.run_some(|thread| chosen.contains(&thread.tid), turn.min(left), until)? {
                return Ok(false);
            }
            mappings = proc::mappings(self.pid)?;
        }
    }

    /// Makes threads wait when an exception lands in a handler, or lets them continue.
    fn wait_for_landings(&self, memory: &Memory, wait: bool) -> io::Result<()> {
        match self.guest().and_then(|guest| guest.landing.as_ref()) {
            None => Ok(()),
            Some(landing) => memory.write(landing.word, &u64::from(wait).to_le_bytes()),
        }
    }

    /// Makes a waiting thread continue at its landing pad.
    fn take_from_landing(&self, thread: &mut Thread, memory: &Memory) -> io::Result<()> {
        let Some(landing) = self.guest().and_then(|guest| guest.landing.as_ref()) else { return Ok(()) };
        if landing.code.contains(&thread.registers.rip) {
            let block = self.block_of(&thread.registers);
            // At its first instruction rax has not been saved yet.
            let rax = match thread.registers.rip == landing.code.start {
                true => thread.registers.rax,
                false => memory.word(block + ACCUMULATOR)?,
            };
            thread.land(memory.word(block + PAD)?, rax);
        }
        Ok(())
    }

    /// Returns the address in the program of the instruction whose copy is at an address, if a thread that waits in a copy
    /// of a system call stands there.
    fn original_of(&self, copy: u64) -> Option<u64> {
        self.calls.iter().find(|&&(from, _)| from == copy).map(|&(_, original)| original)
    }

    fn is_ours(&self, address: u64) -> bool {
        self.arenas.contains(address) || self.image().is_some_and(|image| image.memory.contains(&address))
    }

    /// Whether a thread runs the agent's code or will return to it, or has an exception in flight. In the
    /// last case the unwinder relies on what it has found in the frames.
    /// `rest` are the patches of libraries that have stayed.
    fn is_here(
        &self,
        thread: &Thread,
        memory: &Memory,
        mappings: &[Mapping],
        rest: &[Patch],
        files: &mut Files,
    ) -> bool {
        let Some(image) = self.image() else { return false };
        let rip = self.original_of(thread.registers.rip).unwrap_or(thread.registers.rip);
        let registers = &user_regs_struct { rip, ..thread.registers };
        let is_in_rest = |patch: &Patch| patch.stays() && patch.addresses().contains(&registers.rip);
        if self.is_ours(registers.rip)
            || self.is_in_preemption(registers.rip)
            || self.patches.iter().chain(rest).any(is_in_rest)
        {
            return true;
        }
        let words = memory.record::<ThreadWords>(self.words_of(registers));
        if words.is_ok_and(|words| words.landing >= registers.rsp) {
            return true;
        }
        let library = code_of(mappings, |path| path.contains("/libgcc_s"));
        let library = library.map_or(0..0, |mapping| mapping.lo..mapping.hi);
        let own = &self.unwinder;
        let is_unwinder = |at: u64| {
            library.contains(&at) || own.iter().any(|&(function, size)| at.wrapping_sub(function) < size)
        };
        if is_unwinder(registers.rip) {
            return true;
        }
        // The agent calls a library function through a pointer and waits for its return. Its guard against panics calls only
        // code of its own, and remains of such calls are on many stacks.
        // So do calls through its own table of addresses.
        let calls_itself = |word: u64| {
            let displacement =
                memory.bytes(word - 6, 6).ok().filter(|bytes| bytes.starts_with(&[0xff, 0x15]));
            let displacement =
                displacement.and_then(|bytes| Some(i32::from_le_bytes(*bytes.last_chunk::<4>()?)));
            let target =
                displacement.and_then(|d| memory.record::<u64>(word.wrapping_add_signed(d.into())).ok());
            target.is_some_and(|target| image.code.contains(&target))
        };
        let calls_out = |word: u64| {
            image.code.contains(&word)
                && !calls_itself(word)
                && memory.bytes(word - 6, 6).is_ok_and(|bytes| {
                    bytes.starts_with(&[0xff, 0x15]) || bytes[4] == 0xff && bytes[5] & 0xf8 == 0xd0
                })
                && memory.bytes(word, GUARD_OUT.len()).is_ok_and(|bytes| bytes != GUARD_OUT)
        };
        let shadows = self.guest().and_then(|guest| guest.shadows);
        let replaced = |cfa, slot| {
            let shadows = shadows.filter(|_| self.arenas.contains(slot))?;
            Frames { memory, shadows, arenas: &self.arenas }.replaced(cfa, slot)
        };
        // Functions that are called by an unwinder which is part of the program are hooked as well.
        let calls_hooked = |at: u64, word: u64| replaced(at + 8, word).is_some_and(is_unwinder);
        let libc = libc_code(mappings).map_or(0..0, |libc| libc.lo..libc.hi);
        let mut others = HashSet::new();
        let mut is_restorer =
            |at: u64| libc.contains(&at) && others.insert(at) && stacks::is_restorer(memory, at);
        // A standalone program may have no unwind tables by which the interrupted code could be found later.
        let is_interrupted = |at: u64, word: u64| {
            (self.is_standalone || self.go.is_some())
                && self.is_ours(word)
                && stacks::is_interrupted(memory, at, &self.arenas)
        };
        let is_in_preemption = |at: u64, word: u64| {
            self.is_in_preemption(word) && stacks::is_interrupted(memory, at, &self.arenas)
        };
        let mut ranges = vec![image.code.clone(), library.clone(), libc.clone()];
        ranges.extend(self.go.iter().map(|go| go.preemption.clone()));
        ranges.extend(own.iter().map(|&(function, size)| function..function + size));
        // The functions of an unwinder are hooked if it is part of the program, or by `--libs all`.
        if !own.is_empty() || self.is_standalone || self.go.is_some() || !self.arenas.libraries.is_empty() {
            ranges.push(self.arenas.program.clone());
            ranges.extend(self.arenas.libraries.iter().cloned());
        }
        let end = self.end_of_stack(memory, thread);
        if end.is_some() {
            // Go's functions have no unwind tables. But their exits are not hooked, and slow paths run on stacks of the agent's own and
            // call nothing else. So a thread returns to the agent only from a signal handler, or to code that one has interrupted.
            let is_certain = |at: u64, word: u64| {
                is_in_preemption(at, word)
                    || is_interrupted(at, word)
                    || go::is_behind_handler(memory, &image.code, word)
            };
            if stacks::find(memory, thread, end, mappings, &ranges, is_certain).is_some() {
                return true;
            }
        }
        let suspicious = stacks::find(memory, thread, end, mappings, &ranges, |at, word| {
            calls_out(word)
                || is_in_preemption(at, word)
                || is_unwinder(word)
                || is_restorer(word)
                || is_interrupted(at, word)
                || calls_hooked(at, word)
        });
        if suspicious.is_none() {
            return false;
        }
        // The words may be remains of calls that have returned.
        let ours = |at| image.memory.contains(&at) || self.arenas.contains(at) || is_unwinder(at);
        // Of a thread of Go's, the callers are C functions up to the first one of Go.
        Callers { memory, pid: self.pid, mappings, files }
            .any(registers, ours, replaced)
            .unwrap_or(end.is_none())
    }

    /// Returns everything that the agent has mapped.
    fn mapped_by_agent(&self, memory: &Memory) -> io::Result<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        if let Some(mapped) = self.mapped() {
            let table: Vec<[u64; 2]> = memory.records(mapped, MAPPED_MAX).unwrap_or_default();
            let mapped = table.into_iter().filter(|&[address, len]| address != 0 && len != 0);
            ranges.extend(mapped.map(|[address, len]| address..address.saturating_add(len)));
        }
        for mapping in proc::mappings(self.pid)? {
            if self.is_in_folder(&mapping) {
                ranges.push(mapping.lo..mapping.hi);
            }
        }
        ranges.extend(self.image().map(|image| image.memory.clone()));
        Ok(ranges)
    }

    /// Makes a stopped thread unmap everything that the agent has mapped.
    ///
    /// # Errors
    /// A system call in the process fails.
    pub(super) fn unmap(&self, stopped: &mut Stopped, memory: &Memory) -> Result<()> {
        for range in self.mapped_by_agent(memory)? {
            deadline::check()?;
            let len = range.end - range.start;
            stopped.call(self.instruction, libc::SYS_munmap, [range.start, len, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}
