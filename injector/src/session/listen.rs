//! Handles the messages to a run: of children that begin, of processes that are about to execute a program,
//! and of users who ask for something.

use std::fs::File;
use std::os::fd::{AsFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use gprofinject_abi::ask::{self, Question};
use zerocopy::IntoBytes;

use crate::options::Verb;
use crate::os::{namespaces, proc, sys};
use crate::program::library::{self, Placed, Refusal};
use crate::program::profilee::Profilee;
use crate::program::resolve;
use crate::sampling::sampler::Sampling;
use crate::session::family::Family;
use crate::session::headroom;
use crate::session::label::Label;
use crate::session::member::Unhooked;
use crate::session::message::{Answer, Malformed, MemberName, Message, Request};
use crate::store::listener::{Asker, Listener};
use crate::store::purpose::Purpose;
use crate::target::agent::libraries::{self, Wanted};
use crate::target::launch::usher::{self, Entrance};
use crate::target::loaded::{self, Loaded, Mapped};

/// The number of packets that are processed before other events, such as signals, are handled.
const AT_ONCE: usize = 256;

impl Family<'_> {
    /// Announces a member to the sampler.
    fn announce(&self, index: usize, at_exec: bool, sampling: Option<&mut Sampling>) {
        if let (Some(member), Some(sampling)) = (self.members.get(index), sampling) {
            let planned = member.profilee.planned;
            sampling.announce(member.pid, &planned.subject.code, planned.shape, at_exec);
        }
    }

    /// Handles the packets that have arrived, and writes the profiles of processes that have ended, by those of the
    /// [`Family::descriptors`] that are `readable`. Returns whether there may be more packets.
    pub(crate) fn attend(&mut self, readable: &[RawFd], mut sampling: Option<&mut Sampling>) -> bool {
        self.counting.wake(readable);
        self.take_counted(false);
        // Ends are handled first, because a new process may have the number of one that has ended.
        let ended = self.living.iter().filter(|(_, process)| process.has_ended(readable));
        let mut ended: Vec<(Option<usize>, i32)> =
            ended.map(|(pid, process)| (process.members.first().copied(), *pid)).collect();
        // In the order in which the processes began.
        ended.sort_unstable();
        for (_, pid) in ended {
            self.end(pid, sampling.as_deref_mut());
        }
        // A forked child announces itself in the run folder before it asks from outside.
        let listener = self.listener.as_ref();
        let strangers = listener.map(|listener| listener.strangers(readable)).unwrap_or_default();
        let is_heard = |listener: &&Listener| !strangers.is_empty() || listener.has_news(readable);
        let heard = listener.filter(is_heard).map(|listener| listener.heard(AT_ONCE)).unwrap_or_default();
        let is_more = heard.len() >= AT_ONCE;
        for mut asker in heard {
            self.hear(&mut asker, sampling.as_deref_mut());
        }
        for stranger in strangers {
            if !self.living.contains_key(&stranger.pid) {
                continue;
            }
            let asker = self.listener.as_ref().and_then(|listener| listener.hear_stranger(stranger));
            if let Some(mut asker) = asker {
                self.hear(&mut asker, sampling.as_deref_mut());
            }
        }
        is_more
    }

    /// Handles the last packets, then writes the profiles of all members that are left. Returns how many
    /// processes still run.
    pub(crate) fn end_all(&mut self, mut sampling: Option<&mut Sampling>) -> usize {
        // A process that sends packets without end cannot keep the injector from ending.
        let until = Instant::now() + Duration::from_secs(5);
        // Processes may have announced themselves just now and ended.
        loop {
            let readable = sys::readable(self.descriptors());
            if !self.attend(&readable, sampling.as_deref_mut()) || Instant::now() >= until {
                break;
            }
        }
        self.end_rest(sampling)
    }

    /// Handles what somebody has said. Packets that are no messages are ignored, but for a request that cannot be read, whose
    /// sender waits for an answer.
    fn hear(&mut self, asker: &mut Asker, sampling: Option<&mut Sampling>) {
        let message = Message::parse(&asker.packet);
        // From outside of the run folder, a process can only ask about its libraries.
        if asker.is_outside && !matches!(message, Ok(Message::Loaded(_))) {
            return;
        }
        match message {
            Ok(Message::Forked(name, parent)) => {
                let own = sys::ids().euid;
                if let Some(file) = asker.file.take().filter(|_| asker.user == own) {
                    self.adopt(&name, file.into());
                }
                self.forked(asker.pid, &name, parent.as_ref(), sampling);
            }
            Ok(Message::Opens(name)) => {
                let is_ours = asker.user == sys::ids().euid;
                let file = self
                    .folder
                    .as_ref()
                    .filter(|_| is_ours)
                    .and_then(|folder| folder.open_held(name.as_str()));
                match file {
                    Some(file) => asker.answer_with(&[ask::OPENS], &[file.as_fd()]),
                    None => asker.answer(&[]),
                }
            }
            Ok(Message::Executes(label)) => {
                let name = self.executes(asker, label, sampling).unwrap_or_default();
                asker.answer(name.as_bytes());
                self.settings.cache.keep_fresh();
            }
            Ok(Message::Alone(reason)) => {
                if let Some(file) = asker.file.take() {
                    self.leave_alone(&resolve::Executed::new(file).name, true, &reason.to_string());
                }
            }
            Ok(Message::Loaded(question)) => {
                let mut answer = ask::Answer::default();
                match self.loaded(asker, &question, &mut answer) {
                    Some(Placed { file, image: Some(image), .. }) => {
                        asker.answer_with(answer.as_bytes(), &[file.as_fd(), image.as_fd()]);
                    }
                    Some(Placed { file, image: None, .. }) => {
                        asker.answer_with(answer.as_bytes(), &[file.as_fd()]);
                    }
                    None => asker.answer(answer.as_bytes()),
                }
                self.settings.cache.keep_fresh();
            }
            Ok(Message::Ahead) => {
                self.plan_ahead(asker);
                self.settings.cache.keep_fresh();
            }
            Ok(Message::Control(request)) => self.control(asker, &request, sampling),
            Err(error @ Malformed::Request) => asker.answer(&Answer::Failed(error.to_string()).packet()),
            Err(Malformed::Kind | Malformed::Name) => {}
        }
    }

    /// Takes over the memory file in which a forked child of that name counts.
    fn adopt(&mut self, name: &MemberName, file: File) {
        let Some(folder) = &self.folder else { return };
        let name = name.as_str();
        if self.taken.contains(name) {
            return;
        }
        if let Err(error) = folder.adopt(name, file) {
            self.unfollowed
                .insert(format!("the counts of a forked process are lost: {}", sys::reason(&error)));
        }
    }

    /// Handles the announcement of a forked child, which counts in a region file of that name.
    fn forked(
        &mut self,
        pid: i32,
        name: &MemberName,
        parent: Option<&MemberName>,
        sampling: Option<&mut Sampling>,
    ) {
        let Some(folder) = &self.folder else { return };
        let name = name.as_str();
        if self.taken.contains(name) {
            return;
        }
        let profilee = folder.region(name).report().ok().and_then(|report| self.profilees.get(report.plan));
        if let Some(profilee) = profilee {
            // Both may have ended, or the parent may have executed another program.
            let by_name = parent.and_then(|parent| self.named(parent.as_str()));
            let forked_by = by_name.or_else(|| self.current(proc::parent(pid)?).ok());
            let switched = forked_by.and_then(|index| self.members.get(index));
            let switched = switched.filter(|member| member.profilee.number == profilee.number);
            let switched = switched.map(|member| member.switched.clone()).unwrap_or_default();
            self.join(pid, profilee, name.to_owned(), forked_by, None);
            if let Some(member) = self.members.last_mut() {
                // The child has a copy of everything that was switched in its parent.
                member.switched = switched;
            }
            self.note_maps(pid);
            self.announce(self.members.len() - 1, false, sampling);
        }
    }

    /// Handles the announcement of a process that is about to execute a program. Returns the process's new
    /// name if the program can be followed.
    fn executes(
        &mut self,
        asker: &mut Asker,
        label: Label,
        sampling: Option<&mut Sampling>,
    ) -> Option<String> {
        let pid = asker.pid;
        let file = asker.file.take()?;
        // The process may still have capabilities that the program will not have, and the injector must not
        // read a file that another user has opened.
        if asker.user != sys::ids().euid {
            self.leave_alone(&resolve::Executed::new(file).name, true, "it runs as another user");
            return None;
        }
        let executed = resolve::executed(pid, file)?;
        let binary = &executed.name;
        match headroom::is_enough(pid) {
            Ok(most) => self.spares.limit(most),
            Err(why) => {
                self.leave_alone(binary, true, &why.to_string());
                return None;
            }
        }
        let profilee = match self.profilees.executed(&executed.path(), binary, &self.settings.planner()) {
            Ok(profilee) => profilee,
            Err(why) => {
                self.leave_alone(binary, false, &why.to_string());
                return None;
            }
        };
        // Of the program that was started, it was said before. If that is a shadow stack, it holds for all programs.
        let known = profilee.planned.plan.iter().filter(|_| profilee.number != 0);
        let downgrade = |plan: &'static gprofinject_plan::Plan| {
            plan.downgrade.as_ref().filter(|_| !self.settings.shadow_stacks)
        };
        let less = known.flat_map(|plan| [downgrade(plan), plan.caution.as_ref()]).flatten();
        self.unfollowed.extend(less.map(|less| format!("{}: {less}", binary.display())));
        self.enter(profilee);
        let (name, committed) = match self.make_files(profilee) {
            Ok(made) => made,
            Err(error) => {
                self.leave_alone(binary, true, &sys::reason(&error));
                return None;
            }
        };
        self.join(pid, profilee, name.clone(), None, Some(label));
        if let Some(member) = self.members.last_mut() {
            member.committed_before = committed;
        }
        self.announce(self.members.len() - 1, true, sampling);
        if profilee.planned.subject.kind.is_standalone() {
            // The program's environment stays as it is.
            self.usher_in(pid, &name, profilee);
            return None;
        }
        Some(name)
    }

    /// Notes why a program is not followed. `starts`: gprofinject could profile it if it started it itself.
    fn leave_alone(&mut self, program: &Path, starts: bool, why: &str) {
        self.unfollowed.insert(format!("{} was not followed: {why}", program.display()));
        self.note_alone(program, starts);
    }

    /// Has the agent put into the standalone program that a process is about to execute.
    fn usher_in(&mut self, pid: i32, name: &str, profilee: &Profilee) {
        let (Some(folder), Some(plan)) = (&self.folder, &profilee.planned.plan) else { return };
        match usher::attend(pid, &Entrance::new(plan, folder, name)) {
            Ok(usher) => {
                self.ushers.insert(self.members.len() - 1, usher);
            }
            Err(error) => {
                self.leave_alone(&profilee.binary, true, &format!("{error:#}"));
            }
        }
    }

    /// Plans the libraries about which a process will ask.
    fn plan_ahead(&mut self, asker: &mut Asker) {
        if asker.user != sys::ids().euid {
            return;
        }
        let files: Vec<resolve::Executed> = asker.files.drain(..).map(resolve::Executed::new).collect();
        let is_wanted = |file: &&resolve::Executed| {
            let name = file.name.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| self.settings.libs.wants(name, || library::soname(&file.path())))
        };
        let has_room = |file: &&resolve::Executed| {
            std::fs::metadata(file.path())
                .is_ok_and(|metadata| headroom::is_left(asker.pid, metadata.len()).is_ok())
        };
        let files = files.iter().filter(is_wanted).filter(has_room);
        let files: Vec<_> = files.map(|file| (file.path(), &*file.name)).collect();
        self.libraries.plan_ahead(&files, &self.settings.planner());
    }

    /// Listens to profiled processes that cannot enter the run folder: they have become another user's, or have another root
    /// folder or mount namespace. `running` is a process that runs already, whose network namespace may be another one.
    pub(crate) fn listen_outside(&mut self, running: Option<i32>) {
        let (Some(listener), Some(folder)) = (&mut self.listener, &self.folder) else { return };
        // Without this socket, only libraries that such a process loads later are not hooked, and the agent says so.
        let _ = listener.listen_outside(folder.private(), None);
        if let Some(network) = running.and_then(namespaces::other_network) {
            let _ = listener.listen_outside(folder.private(), Some(&network));
        }
    }

    /// Plans the libraries of a process that already runs. Returns those that are to be hooked there.
    ///
    /// # Errors
    /// It is a process of musl's, in which nothing can be hooked, because not all libraries are known.
    pub(crate) fn running(&mut self, pid: i32, mapped: Mapped) -> Result<Vec<Wanted>> {
        let Mapped { dynamic_linker, loaded, unreadable } = mapped;
        let is_musl = dynamic_linker != 0 && self.is_musl(pid);
        let named = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        for path in unreadable {
            if is_musl {
                // The agent may have to be called from there.
                bail!(
                    "cannot attach to process {pid}: the file of its library {} cannot be read, or was replaced after the \
                     process had loaded it",
                    path.display()
                );
            }
            let why = "its file cannot be read, or was replaced after the process had loaded it";
            self.leave_wanted(self.program_of(pid), &path, why.into());
        }
        let (mut chosen, planner) = (Vec::new(), self.settings.planner());
        for Loaded { file, order } in loaded {
            let soname = || library::soname(&file.path());
            let is_wanted = named(&file.name).is_some_and(|name| self.settings.libs.wants(&name, soname));
            if !is_wanted {
                self.leave(pid, &file.name, Unhooked::LeftOut);
            }
            let purpose = Purpose::of(is_wanted, is_musl);
            if purpose != Purpose::Gates || self.libraries.may_need_gates(&file.path(), &file.name, &planner)
            {
                chosen.push((file, order, purpose));
            }
        }
        let hooked = chosen.iter().filter(|(.., purpose)| *purpose == Purpose::Hooks);
        let files: Vec<_> = hooked.map(|(file, ..)| (file.path(), &*file.name)).collect();
        self.libraries.plan_ahead(&files, &planner);
        let mut wanted = Vec::new();
        for (file, order, purpose) in &chosen {
            let is_needed = is_musl && order.start == dynamic_linker;
            match self.libraries.at(&file.path(), &file.name, *purpose, &planner) {
                Ok(library) => {
                    self.enter_library(library);
                    wanted.push(Wanted { library, order: *order, is_needed });
                }
                Err(why) if is_needed => return Err(libraries::unhookable(&why.to_string())),
                Err(Refusal::Unneeded) => {}
                Err(why) => self.leave(pid, &file.name, Unhooked::Refused(why)),
            }
        }
        // Nothing else is prepared if this cannot be.
        wanted.sort_by_key(|wanted| !wanted.is_needed);
        if is_musl && !wanted.first().is_some_and(|first| first.is_needed) {
            return Err(libraries::unhookable("its file was not found"));
        }
        Ok(wanted)
    }

    /// Handles the announcement of a library that a process has loaded. Returns its files if the library is to be
    /// hooked, and fills in the answer.
    fn loaded(&mut self, asker: &mut Asker, question: &Question, answer: &mut ask::Answer) -> Option<Placed> {
        self.note_maps(asker.pid);
        // A process may have become another user's, or have another root folder, and still reach the run folder.
        let is_ours = !asker.is_outside && asker.user == sys::ids().euid;
        let file = match asker.file.take().filter(|_| is_ours) {
            Some(file) => resolve::Executed::new(file),
            None => self.mapped_outside(asker.pid, question.start)?,
        };
        let name = file.name.file_name()?.to_str()?;
        let is_wanted = self.settings.libs.wants(name, || library::soname(&file.path()));
        if !is_wanted {
            self.leave(asker.pid, &file.name, Unhooked::LeftOut);
        }
        let purpose = Purpose::of(is_wanted, self.is_musl(asker.pid));
        if purpose == Purpose::Gates
            && !self.libraries.may_need_gates(&file.path(), &file.name, &self.settings.planner())
        {
            if is_ours {
                self.leave_out(&file.path(), &file.name, question.name);
            }
            return None;
        }
        match self.placed(asker, question, &file, purpose) {
            Ok((placed, plan)) => {
                *answer = ask::Answer { hooked: 1, plan, slot_bytes: placed.slot_bytes, reserved: 0 };
                Some(placed)
            }
            Err(Refusal::Unneeded) => None,
            Err(why) => {
                self.leave(asker.pid, &file.name, Unhooked::Refused(why));
                None
            }
        }
    }

    /// Returns the file that a process has mapped at an address, which cannot enter the run folder. The descriptor that it
    /// has sent is not used: it may be that of a file which the process may not read. Returns `None` if the library is not to
    /// be hooked.
    fn mapped_outside(&mut self, pid: i32, address: u64) -> Option<resolve::Executed> {
        if !self.living.contains_key(&pid) {
            return None;
        }
        let Some((file, len)) = loaded::file_at(pid, address) else {
            let mappings = proc::mappings(pid).unwrap_or_default();
            let path = mappings.into_iter().find(|mapping| mapping.lo == address)?.path;
            let why = "its file cannot be read, or was replaced after the process had loaded it";
            self.leave_wanted(self.program_of(pid), Path::new(&path), why.into());
            return None;
        };
        if self.unhooked.contains_key(&(self.program_of(pid), file.name.clone())) {
            return None;
        }
        if !self.libraries.knows(&file.path()) {
            let Some(left) = self.outside_left.checked_sub(len) else {
                let why = "the process has loaded more libraries than gprofinject reads";
                self.leave(pid, &file.name, Unhooked::Refused(why.into()));
                return None;
            };
            self.outside_left = left;
        }
        Some(file)
    }

    /// Returns the program that a process runs.
    fn profilee_of(&self, pid: i32) -> Option<&'static Profilee> {
        let member = self.members.get(*self.living.get(&pid)?.members.last()?)?;
        Some(member.profilee)
    }

    /// Returns the number of the program that a process runs.
    fn program_of(&self, pid: i32) -> u32 {
        self.profilee_of(pid).map_or(0, |profilee| profilee.number)
    }

    /// Returns whether musl's dynamic linker has loaded the program that a process runs.
    fn is_musl(&self, pid: i32) -> bool {
        self.profilee_of(pid).is_some_and(|profilee| profilee.planned.subject.kind.is_musl())
    }

    /// Notes that a library is not hooked in a process that runs this program, unless the user has left it out.
    pub(crate) fn leave_wanted(&mut self, program: u32, library: &Path, why: Refusal) {
        let name = library.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_wanted = self.settings.libs.wants(name, || None);
        self.leave_in(program, library, if is_wanted { Unhooked::Refused(why) } else { Unhooked::LeftOut });
    }

    /// Notes that a library is not hooked in a process.
    pub(crate) fn leave(&mut self, pid: i32, library: &Path, why: Unhooked) {
        self.leave_in(self.program_of(pid), library, why);
    }

    /// The same in processes that run a program, by its number.
    pub(crate) fn leave_in(&mut self, program: u32, library: &Path, why: Unhooked) {
        /// A process can name any number of files.
        const MOST: usize = 4096;
        if self.unhooked.len() < MOST {
            self.unhooked.insert((program, library.to_owned()), why);
        }
    }

    /// Plans a library for a process that has loaded it. Returns its files, and the number of the plan.
    ///
    /// # Errors
    /// It cannot be hooked, for this reason.
    fn placed(
        &mut self,
        asker: &Asker,
        question: &Question,
        file: &resolve::Executed,
        purpose: Purpose,
    ) -> Result<(Placed, u32), Refusal> {
        let metadata = std::fs::metadata(file.path()).ok().filter(|metadata| metadata.is_file());
        let metadata = metadata.ok_or("it is not a file")?;
        if !library::is_mapped_at(asker.pid, question.start, &metadata) {
            return Err("the file was replaced after a process had loaded it".into());
        }
        if purpose == Purpose::Hooks {
            headroom::is_left(asker.pid, metadata.len())?;
        }
        let library = self.libraries.at(&file.path(), &file.name, purpose, &self.settings.planner())?;
        self.enter_library(library);
        let member = self.living.get(&asker.pid).and_then(|process| process.members.last().copied());
        let mut member = member.and_then(|index| self.members.get_mut(index));
        let off = member.as_mut().map(|member| member.switched.of_library(library)).unwrap_or_default();
        let mappings = || proc::mappings(asker.pid).unwrap_or_default();
        let placed = library::placed(library, question, &off, mappings, Some(&self.settings.cache))?;
        if let Some(member) = member {
            member.grip.note_library(library, question.start, placed.arena);
        }
        Ok((placed, library.number))
    }

    /// Carries out a user's request from the socket, and answers it.
    fn control(&mut self, asker: &Asker, request: &Request, sampling: Option<&mut Sampling>) {
        if request.verb == Verb::Look && may_ask(asker.user).is_ok() {
            self.show(asker, request, sampling);
            return;
        }
        let done = may_ask(asker.user).and_then(|()| self.carry_out(request, sampling));
        let answer = match done {
            Ok(text) => Answer::Done(text),
            Err(error) => Answer::Failed(format!("{error:#}")),
        };
        asker.answer(&answer.packet());
    }

    /// Carries out what a signal asks for, with all processes that run. Returns false if the signal asks for
    /// nothing.
    pub(crate) fn is_asked_by(&mut self, signal: i32, mut sampling: Option<&mut Sampling>) -> bool {
        let asked = self.settings.signals.iter().find(|(known, _)| *known == signal);
        let Some(&(_, verb)) = asked else { return false };
        let pids: Vec<i32> = self.living.keys().copied().collect();
        for pid in pids {
            let verb = if verb == Verb::Pause && self.is_paused(pid) { Verb::Resume } else { verb };
            match self.carry_out(
                &Request { pid, verb, output: None, pattern: None, wants: None },
                sampling.as_deref_mut(),
            ) {
                Ok(text) => self.settings.voice.note(text),
                Err(error) => self.settings.voice.warn(format_args!("{error:#}")),
            }
        }
        true
    }
}

/// Checks that a user may ask for something. A request names a file that the injector writes. The process
/// itself knows the socket as well and may run as another user; it must not make the injector write where the
/// process could not.
fn may_ask(user: u32) -> Result<()> {
    if user != 0 && user != sys::ids().euid {
        bail!("only root and the user who runs gprofinject can ask for this");
    }
    Ok(())
}
