//! The first step of attaching: maps the agent's image into the process, and has one borrowed thread run the agent's
//! preparation.

use crate::os::proc;
use crate::target::agent::engine::*;

impl Attached {
    /// Maps the agent and has it prepare. No thread but one is stopped, and that one for a few milliseconds. None:
    /// another gprofinject has come first.
    pub(crate) fn prepare(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        folder: &PrivateFolder,
        name: &str,
    ) -> Result<Option<Attached>> {
        let prepared = Attached::prepare_this(process, planned, plan, folder, name);
        // Whatever it was that went wrong then.
        prepared.map_err(|error| match process.executes_another() {
            true => anyhow!("process {} executes another program now; try again", process.pid),
            false => error,
        })
    }

    fn prepare_this(
        process: &Process,
        planned: &Planned,
        plan: &Plan,
        folder: &PrivateFolder,
        name: &str,
    ) -> Result<Option<Attached>> {
        let pid = process.pid;
        let memory = Memory::open(pid).map_err(|error| anyhow!(refusal(pid, &error)))?;
        let mappings = detours::loaded(&memory, process)?;
        let libc = libc_code(&mappings).with_context(|| {
            format!("process {pid} has not loaded glibc, which the agent needs; if it only begins, try again")
        })?;
        let agent = Agent::new()?;
        let code = memory.bytes(libc.lo, code_len(libc))?;
        let found = detours::find(&memory, process, &mappings);
        let bias = process.program_headers().wrapping_sub(plan.phdr());
        let unwinder = unwinder(planned, bias);
        let mut attached =
            Attached { unwinder, ..Attached::unmapped(process, plan, folder, &code, libc.lo)? };
        let get_gr = get_gr(planned, plan, bias);
        let near = libc.lo;
        let is_first = attached.order(|attached, client| {
            if !named::folders(pid)?.is_empty() {
                return Ok(false);
            }
            tracer::apart(pid, |tracer| {
                let memory = Memory::open(pid)?;
                let mut stopped = attached.one(tracer)?;
                let prepared = attached.map(&mut stopped, &memory, &agent, near).and_then(|()| {
                    // By their names, where the kernel has no such way.
                    let given = attached.give(&mut stopped, &memory, folder, name).unwrap_or([-1; 2]);
                    let bytes =
                        |pairs: &[[u64; 2]]| order_bytes(process, folder.path(), name, given, pairs, get_gr);
                    attached.prepare_stopped(&mut stopped, &memory, &agent, &found, bytes)
                });
                if prepared.is_err() || !client.is_there() {
                    let _ = attached.unmap(&mut stopped, &memory);
                }
                prepared.map(|()| true)
            })
        })?;
        Ok(is_first.then_some(attached))
    }

    /// Opens region and plan file in the process.
    fn give(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        folder: &PrivateFolder,
        name: &str,
    ) -> io::Result<[i32; 2]> {
        let region = folder.open_to_write(&format!("{name}{REGION_SUFFIX}"))?;
        let plan = folder.open_file(&plan_file(name))?;
        handover::give(stopped, memory, self.instruction, self.stack - STACK, [&region, &plan])
    }

    fn prepare_stopped(
        &mut self,
        stopped: &mut Stopped,
        memory: &Memory,
        agent: &Agent,
        found: &[Found],
        bytes: impl Fn(&[[u64; 2]]) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let (base, copies) = (self.image.start, self.image.start + agent.len());
        let planned = detours::plan(found, agent, base, copies)
            .map_err(|name| anyhow!("the library function {name} cannot be led to the agent"))?;
        for planned in &planned {
            memory.write(planned.copy, &planned.detour.original)?;
        }
        let pairs: Vec<[u64; 2]> = planned.iter().map(|p| [p.at, p.copy]).collect();
        memory.write(self.order, &bytes(&pairs)?)?;
        let detoured =
            |p: detours::Planned| Detoured { at: p.at, before: p.before, after: p.detour.replacement };
        self.detours = planned.into_iter().map(detoured).collect();
        // The next thing that happens is that the process knows our folder.
        self.save().context("the run folder cannot be written to")?;
        let pid = self.pid;
        let refused = |error: Error| match error.raw_os_error() {
            Some(libc::EMFILE) => anyhow!(
                "process {pid} may open no more files (its ulimit -n); raise that: prlimit --pid {pid} --nofile=1024"
            ),
            _ => anyhow!("the agent could not be prepared: {}", crate::os::sys::reason(&error)),
        };
        let prepared = self.command(stopped, memory, PREPARE);
        let order = self.order;
        let read = |offset: usize, n: u64| memory.word(order + offset as u64 + 8 * n);
        self.mapped = read(offset_of!(Order, mapped), 0)?;
        prepared.map_err(refused)?;
        let (mut words, mut waiting) = ([0; THREAD_WORDS], [0; 3]);
        for (n, word) in (0..).zip(&mut words) {
            *word = read(offset_of!(Order, words), n)?;
        }
        for (n, word) in (0..).zip(&mut waiting) {
            *word = read(offset_of!(Order, waiting), n)?;
        }
        self.shadows = read(offset_of!(Order, shadows), 0)?;
        (self.words, self.waiting) = (words, waiting);
        // The process can write there as well.
        self.is_sound().context("the process has changed what the agent said")
    }

    /// Maps memory near the C library's code and puts the agent there. The other threads run and map memory, too: the
    /// place is chosen anew when one of them has taken it.
    fn map(&mut self, stopped: &mut Stopped, memory: &Memory, agent: &Agent, near: u64) -> Result<()> {
        const READ_WRITE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        const READ_EXECUTE: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        const TRIES: usize = 50;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let len = agent.len() + COPIES + ORDER + STACK;
        let mut failure = Error::from_raw_os_error(libc::EEXIST);
        let mut base = 0;
        for _ in 0..TRIES {
            let mappings = proc::mappings(self.pid)?;
            base = gap(&mappings, near, len).context("there is no memory near the C library's code")?;
            let arguments = [base, len, READ_WRITE, flags as u64, u64::MAX, 0];
            match stopped.call(self.instruction, libc::SYS_mmap, arguments) {
                Ok(made) if made == base => {
                    self.image = base..base + len;
                    break;
                }
                // Kernels before 4.17 take the address as a hint.
                Ok(made) => {
                    stopped.call(self.instruction, libc::SYS_munmap, [made, len, 0, 0, 0, 0])?;
                }
                Err(error) => {
                    let is_taken = error.raw_os_error() == Some(libc::EEXIST);
                    failure = error;
                    if !is_taken {
                        break;
                    }
                }
            }
        }
        if self.image.is_empty() {
            let limit = match failure.raw_os_error() {
                Some(libc::ENOMEM) => " (its ulimit -v or -d, or the machine's memory, is used up)",
                _ => "",
            };
            bail!(
                "no memory could be mapped near the C library's code: {}{limit}",
                crate::os::sys::reason(&failure)
            );
        }
        self.code = base + agent.code.0..base + agent.code.1;
        self.order = base + agent.len() + COPIES;
        self.stack = self.order + ORDER + STACK;
        self.entry = base + agent.function(CONTROL).context("the agent library is damaged")?;
        memory.write(base, &agent.at(base))?;
        for (at, len) in [(self.code.start, self.code.end - self.code.start), (self.order - COPIES, COPIES)] {
            stopped.call(self.instruction, libc::SYS_mprotect, [at, len, READ_EXECUTE, 0, 0, 0]).map_err(
                |error| {
                    anyhow!(
                        "process {} may not make memory executable: {} (systemd's MemoryDenyWriteExecute, SELinux); \
                         start it without that",
                        self.pid,
                        crate::os::sys::reason(&error)
                    )
                },
            )?;
        }
        Ok(())
    }
}

/// Functions of an unwinder that is part of the program whose frames are below every landing: runtime addresses.
fn unwinder(planned: &Planned, bias: u64) -> Vec<(u64, u64)> {
    const NAMES: [&str; 5] = [
        "_Unwind_RaiseException",
        "_Unwind_Resume",
        "_Unwind_Resume_or_Rethrow",
        "_Unwind_ForcedUnwind",
        "_Unwind_Backtrace",
    ];
    let functions = planned.functions().map(|(function, _)| function);
    let own = functions.filter(|function| function.names().any(|name| NAMES.contains(&name)));
    own.map(|function| (function.address.wrapping_add(bias), function.size)).collect()
}

/// Where such an unwinder's `_Unwind_GetGR` can be called without being counted; 0: there is none.
fn get_gr(planned: &Planned, plan: &Plan, bias: u64) -> u64 {
    let mut functions = planned.functions().map(|(function, _)| function);
    let Some(own) = functions.find(|function| function.names().any(|name| name == "_Unwind_GetGR")) else {
        return 0;
    };
    match plan.records.iter().find(|record| record.entry == own.address) {
        Some(record) => plan.arena.wrapping_add(bias) + u64::from(record.body),
        None => own.address.wrapping_add(bias),
    }
}

/// The order to prepare, as it lies in memory.
fn order_bytes(
    process: &Process,
    folder: &Path,
    name: &str,
    descriptors: [i32; 2],
    detours: &[[u64; 2]],
    get_gr: u64,
) -> Result<Vec<u8>> {
    const WANTED: [u64; 5] = [3, 4, 5, 7, 9];
    let mut bytes = vec![0; size_of::<Order>()];
    let mut put = |offset: usize, word: u64| bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    put(offset_of!(Order, stack), process.stack);
    put(offset_of!(Order, get_gr), get_gr);
    for (n, kind) in WANTED.into_iter().enumerate() {
        put(offset_of!(Order, auxiliary) + 16 * n, kind);
        put(offset_of!(Order, auxiliary) + 16 * n + 8, process.auxiliary(kind));
    }
    for (n, [at, copy]) in detours.iter().enumerate() {
        put(offset_of!(Order, detours) + 16 * n, *at);
        put(offset_of!(Order, detours) + 16 * n + 8, *copy);
    }
    put(offset_of!(Order, detours_count), detours.len() as u64);
    for (n, descriptor) in descriptors.into_iter().enumerate() {
        put(offset_of!(Order, descriptors) + 8 * n, i64::from(descriptor) as u64);
    }
    let place = folder.join(name);
    let place = place.as_os_str().as_bytes();
    put(offset_of!(Order, place_len), place.len() as u64);
    if place.len() > PLACE_MAX {
        bail!("the name of {} is too long", folder.display());
    }
    let at = offset_of!(Order, place);
    bytes[at..at + place.len()].copy_from_slice(place);
    Ok(bytes)
}
