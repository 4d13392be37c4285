//! Out of a process again: patches, return addresses, library functions, memory.

use super::*;

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
        let mut longest = Pause::default();
        let mut files = Files::default();
        let left = self.with_moments(|attached, tracer, until| {
            let memory = Memory::open(attached.pid)?;
            let mut stopped = attached.all(tracer)?;
            let step = attached.detach_stopped(&mut stopped, &memory, &mut files, until);
            if stopped.elapsed() > longest.took {
                longest = Pause { took: stopped.elapsed(), threads: stopped.threads.len() };
            }
            step
        });
        match left {
            Ok(()) => Ok((longest, true)),
            Err(error) if error.is::<Stays>() => Ok((longest, false)),
            Err(error) => Err(error),
        }
    }

    fn detach_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        files: &mut Files,
        until: Instant,
    ) -> Result<Step<()>> {
        if let Step::Later(error) = self.pause_stopped(stopped, memory, until)? {
            return Ok(Step::Later(error));
        }
        loop {
            let mappings = Process::mappings_of(self.pid)?;
            let mut here = HashSet::new();
            for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
                thread.fresh = self.is_here(thread, memory, &mappings, files);
                here.extend(thread.fresh.then_some(thread.tid));
            }
            if here.is_empty() {
                break;
            }
            if Instant::now() > until {
                return Ok(Step::Later(Stays.into()));
            }
            // No more than can run at once: who has to wait for a processor stays where it is.
            stopped.stir(|thread| here.contains(&thread.tid), MOMENT)?;
        }
        // Should we be killed meanwhile: there is less and less to take out.
        let _ = self.save(Path::new(&self.folder));
        self.command(stopped, memory, LEAVE)?;
        // Not while a thread is on its way through a thunk, which relies on the frame's cell.
        frames::put_back(self.pid, memory, self.shadows, &self.arena)?;
        // Frames with replaced return addresses were in need of them.
        for detoured in &self.detours {
            memory.write(detoured.at, &detoured.before)?;
        }
        self.unmap(stopped, memory)?;
        Ok(Step::Done(()))
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
        let is_unwinder = |mapping: &&Mapping| mapping.executable && mapping.path.contains("/libgcc_s");
        let unwinder = mappings.iter().find(is_unwinder).map_or(0..0, |mapping| mapping.lo..mapping.hi);
        if unwinder.contains(&registers.rip) {
            return true;
        }
        // The agent calls a library's function by a pointer, and waits for it.
        let calls_out = |word: u64| {
            self.code.contains(&word)
                && memory.bytes(word - 6, 6).is_ok_and(|bytes| {
                    bytes.starts_with(&[0xff, 0x15]) || bytes[4] == 0xff && bytes[5] & 0xf8 == 0xd0
                })
        };
        let is_suspicious = stacks::words(memory, thread, mappings)
            .any(|(_, word)| calls_out(word) || unwinder.contains(&word));
        let is_in_handler = || {
            let libc = libc_code(mappings).map_or(0..0, |libc| libc.lo..libc.hi);
            !stacks::interrupted(memory, thread, mappings, &libc).is_empty()
        };
        if !is_suspicious && !is_in_handler() {
            return false;
        }
        // It may be what calls have left that are over.
        let ours = |at| self.image.contains(&at) || self.arena.contains(&at) || unwinder.contains(&at);
        let replaced = |cfa, slot| {
            self.arena.contains(&slot).then(|| frames::replaced(memory, self.shadows, cfa)).flatten()
        };
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
        ranges.push((self.arena.start, self.arena.end - self.arena.start));
        for mapping in Process::mappings_of(self.pid)? {
            if mapping.path.starts_with(&self.folder) {
                ranges.push((mapping.lo, mapping.hi - mapping.lo));
            }
        }
        ranges.push((self.image.start, self.image.end - self.image.start));
        for (address, len) in ranges {
            stopped.call(self.instruction, libc::SYS_munmap, [address, len, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}
