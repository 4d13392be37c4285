//! Out of a process again: patches, return addresses, library functions, memory.

use std::collections::VecDeque;

use crate::os::proc::{self, Mapping};
use crate::target::agent::engine::*;

#[derive(Debug)]
struct Stays;

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a thread stays in the agent")
    }
}

impl std::error::Error for Stays {}

impl Attached {
    /// Leaves the process as it was. False: a thread is in our code and stays there, so the memory stays as well.
    pub(crate) fn detach(&mut self) -> Result<(Pause, bool)> {
        self.order(|attached, _| attached.detach_running())
    }

    /// Leaves a process that was forked by the one that was attached to.
    pub(crate) fn detach_child(mut self, process: &Process) -> Result<(Pause, bool)> {
        (self.pid, self.started, self.inherited) = (process.pid, process.started, true);
        self.detach()
    }

    fn detach_running(&mut self) -> Result<(Pause, bool)> {
        let mut longest = Pause::default();
        let mappings = proc::mappings(self.pid)?;
        if !self.is_among(&mappings) {
            // Somebody else has.
            return Ok((longest, true));
        }
        let mut files = Files::default();
        files.load(self.pid, &mappings);
        let left = self.with_moments(LAST_PATIENCE, |attached, tracer, until| {
            let memory = Memory::open(attached.pid)?;
            let mut stopped = attached.all(tracer)?;
            let step = attached.detach_stopped(&mut stopped, &memory, &mut files, until);
            if stopped.elapsed() > longest.took {
                longest = Pause { took: stopped.elapsed(), threads: stopped.threads.len() };
            }
            step
        });
        match left {
            Ok(()) => Ok((longest, self.unmap_running())),
            Err(error) if error.is::<Stays>() => Ok((longest, false)),
            // It executes another program meanwhile.
            Err(_) if proc::mappings(self.pid).is_ok_and(|now| !self.is_among(&now)) => Ok((longest, true)),
            Err(error) => Err(error),
        }
    }

    /// Anything of ours is mapped.
    fn is_among(&self, mappings: &[Mapping]) -> bool {
        let is_ours = |mapping: &Mapping| mapping.lo == self.image.start || self.is_in_folder(mapping);
        mappings.iter().any(is_ours)
    }

    fn is_in_folder(&self, mapping: &Mapping) -> bool {
        Path::new(&mapping.path).starts_with(&self.folder)
    }

    /// Nobody can come into our memory any more: all threads but one may run while it is taken away. False: it stays.
    fn unmap_running(&self) -> bool {
        let unmapped = tracer::apart(self.pid, |tracer| -> Result<()> {
            let memory = Memory::open(self.pid)?;
            self.unmap(&mut self.one(tracer)?, &memory)
        });
        // It may have ended.
        unmapped.is_ok() || proc::mappings(self.pid).map_or(true, |mappings| mappings.is_empty())
    }

    fn detach_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &mut Files,
        until: Instant,
    ) -> Result<Step<()>> {
        if !self.paused {
            // Most of those that are in our code get out of it by themselves then, and do not come back.
            let paused = self.pause_stopped(stopped, memory, until)?;
            return Ok(Step::Later(if let Step::Later(error) = paused { error } else { Stays.into() }));
        }
        self.wait_for_landings(memory, true)?;
        let are_out = self.get_out(stopped, memory, files, until);
        self.wait_for_landings(memory, false)?;
        if !are_out? {
            return Ok(Step::Later(Stays.into()));
        }
        self.command(stopped, memory, LEAVE)?;
        // Not while a thread is on its way through a thunk, which relies on the frame's cell.
        frames::put_back(self.pid, memory, self.shadows, &self.arena)?;
        // Frames with replaced return addresses were in need of them.
        for detoured in self.detours.iter().filter(|d| d.stands(memory, &d.after)) {
            memory.write(detoured.at, &detoured.before)?;
        }
        Ok(Step::Done(()))
    }

    /// Lets threads run until none is in our code, or time is up.
    fn get_out(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &mut Files,
        until: Instant,
    ) -> Result<bool> {
        const LONGEST: Duration = Duration::from_millis(4);
        let (mut moment, at_once) = stopped.turn();
        // Whose turn it is, and how many have had one since the moments are so long.
        let mut queue: VecDeque<i32> = VecDeque::new();
        let mut turns = 0;
        let mut mappings = proc::mappings(self.pid)?;
        loop {
            for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
                deadline::check()?;
                self.take_from_landing(thread, memory)?;
                thread.fresh = self.is_here(thread, memory, &mappings, files);
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
                moment = (moment * 2).min(LONGEST);
            }
            let chosen: Vec<i32> = queue.iter().copied().take(at_once).collect();
            queue.rotate_left(chosen.len());
            turns += chosen.len();
            if !stopped.run_some(|thread| chosen.contains(&thread.tid), moment.min(left), until)? {
                return Ok(false);
            }
            mappings = proc::mappings(self.pid)?;
        }
    }

    /// Whether threads that an exception has landed in a handler wait there for us.
    fn wait_for_landings(&self, memory: &Memory, wait: bool) -> io::Result<()> {
        match self.waiting[0] {
            0 => Ok(()),
            word => memory.write(word, &u64::from(wait).to_le_bytes()),
        }
    }

    /// A thread that waits goes on at its landing pad.
    fn take_from_landing(&self, thread: &mut Thread, memory: &Memory) -> io::Result<()> {
        let [_, start, end] = self.waiting;
        if (start..end).contains(&thread.registers.rip) {
            let block = thread.registers.fs_base;
            // At its first instruction rax has not been saved.
            let rax = match thread.registers.rip == start {
                true => thread.registers.rax,
                false => memory.word(block + ACCUMULATOR)?,
            };
            thread.land(memory.word(block + PAD)?, rax);
        }
        Ok(())
    }

    fn is_ours(&self, address: u64) -> bool {
        self.arena.contains(&address) || self.image.contains(&address)
    }

    /// Whether a thread runs our code, or will come back to it, or an exception is on its way: the unwinder relies on
    /// what it has found in the frames.
    fn is_here(&self, thread: &Thread, memory: &Memory, mappings: &[Mapping], files: &mut Files) -> bool {
        let registers = &thread.registers;
        if self.is_ours(registers.rip) {
            return true;
        }
        let landing = memory.word(registers.fs_base + WORDS + offset_of!(ThreadWords, landing) as u64);
        if landing.is_ok_and(|landing| landing >= registers.rsp) {
            return true;
        }
        let is_library = |mapping: &&Mapping| mapping.executable && mapping.path.contains("/libgcc_s");
        let library = mappings.iter().find(is_library).map_or(0..0, |mapping| mapping.lo..mapping.hi);
        let own = &self.unwinder;
        let is_unwinder = |at: u64| {
            library.contains(&at) || own.iter().any(|&(function, size)| at.wrapping_sub(function) < size)
        };
        if is_unwinder(registers.rip) {
            return true;
        }
        // The agent calls a library's function by a pointer, and waits for it.
        let calls_out = |word: u64| {
            self.code.contains(&word)
                && memory.bytes(word - 6, 6).is_ok_and(|bytes| {
                    bytes.starts_with(&[0xff, 0x15]) || bytes[4] == 0xff && bytes[5] & 0xf8 == 0xd0
                })
        };
        let replaced = |cfa, slot| {
            self.arena.contains(&slot).then(|| frames::replaced(memory, self.shadows, cfa)).flatten()
        };
        // What an unwinder calls that is part of the program is hooked as well.
        let calls_hooked = |at: u64, word: u64| replaced(at + 8, word).is_some_and(is_unwinder);
        let libc = libc_code(mappings).map_or(0..0, |libc| libc.lo..libc.hi);
        let mut others = HashSet::new();
        let mut is_restorer =
            |at: u64| libc.contains(&at) && others.insert(at) && stacks::is_restorer(memory, at);
        let mut ranges = vec![self.code.clone(), library.clone(), libc.clone()];
        if !own.is_empty() {
            ranges.extend(own.iter().map(|&(function, size)| function..function + size));
            ranges.push(self.arena.clone());
        }
        let suspicious = stacks::find(memory, thread, mappings, &ranges, |at, word| {
            calls_out(word) || is_unwinder(word) || is_restorer(word) || calls_hooked(at, word)
        });
        if suspicious.is_none() {
            return false;
        }
        // It may be what calls have left that are over.
        let ours = |at| self.image.contains(&at) || self.arena.contains(&at) || is_unwinder(at);
        Callers { memory, pid: self.pid, mappings, files }.any(thread, ours, replaced).unwrap_or(true)
    }

    pub(super) fn unmap(&self, stopped: &mut Stopped, memory: &Memory) -> Result<()> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        if self.mapped != 0 {
            let table = memory.bytes(self.mapped, MAPPED_MAX * 16).unwrap_or_default();
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            let pairs = table.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
            ranges.extend(pairs.filter(|&(address, len)| address != 0 && len != 0));
        }
        for mapping in proc::mappings(self.pid)? {
            if self.is_in_folder(&mapping) {
                ranges.push((mapping.lo, mapping.hi - mapping.lo));
            }
        }
        ranges.push((self.image.start, self.image.end - self.image.start));
        for (address, len) in ranges {
            deadline::check()?;
            stopped.call(self.instruction, libc::SYS_munmap, [address, len, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}
