//! A process that inherits gprofinject's memory files if gprofinject is killed.
//!
//! A memory file has no name in a file system, so it exists only as long as a process has it open or mapped. gprofinject sends the
//! heir each of its memory files, which the heir keeps under the same number. When gprofinject has ended, the heir puts each file
//! into the run folder in place of the link to it, as soon as no process counts in it any more, and then ends. (As long as a process
//! counts, it would end if somebody truncated the file.)
#![allow(unsafe_code, reason = "it forks a process")]

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::os::{limits, proc, sys};

/// When the heir looks at the files for the second time, and how often it does later on.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// How long the heir lets files gather before it takes them. A program that executes others all the time does not have it waken for each.
const GATHERING: Duration = Duration::from_millis(2);

/// The heir, as gprofinject sees it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Heir {
    pid: i32,
    socket: OwnedFd,
    /// The heir's end of the socket. As long as it is open here, no file has the number that it has in the heir.
    _theirs: OwnedFd,
}

impl Heir {
    /// Forks the heir. It has a copy of this process's memory, so this is called before there is much of it, and while this process
    /// has one thread. Returns `None` if there can be no such process, or if it could take the place of one of the program's.
    pub(crate) fn start() -> Option<Heir> {
        if limits::few_processes().is_some() {
            return None;
        }
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
        let blocked = sys::block_signals();
        // Without a signal at its end, this is no child that `wait` finds when gprofinject looks whether any is left.
        // SAFETY: without flags this is a fork. This process has one thread, so the child may do anything; it never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            inherit(&theirs);
        }
        sys::unblock_signals(&blocked);
        (pid > 0).then(|| Heir { pid: pid as i32, socket, _theirs: theirs })
    }

    /// The heir's folder in /proc.
    pub(crate) fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid))
    }

    /// Gives the heir a file. If the heir was killed, or has no time, it does not get it.
    pub(crate) fn keep(&self, file: &File) {
        self.send(file, true);
    }

    /// Lets the heir close a file.
    pub(crate) fn release(&self, file: &File) {
        self.send(file, false);
    }

    fn send(&self, file: &File, is_kept: bool) {
        let number = file.as_raw_fd().to_ne_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        if is_kept {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&self.socket, &[IoSlice::new(&number)], &mut control, flags);
    }

    /// Ends the heir, without waiting for that.
    pub(crate) fn end(&self) {
        // SAFETY: no memory is involved, and the process is a child of this one that was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Leaves the files to the heir when this process ends.
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        self.end();
        // SAFETY: no status is asked for, and the process is a child of this one that no other code waits for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WCLONE) };
    }
}

/// The main function of the heir. All signals are blocked.
fn inherit(socket: &OwnedFd) -> ! {
    let own = socket.as_raw_fd() as libc::c_uint;
    // SAFETY: the arguments are numbers, and strings that the kernel copies. Of the descriptors, only the socket is used from here on.
    // The end of the session, and an unmounted file system, do not concern the heir.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-heir".as_ptr());
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        if let Some(last) = own.checked_sub(1) {
            sys::close_range(0, last);
        }
        sys::close_range(own + 1, libc::c_uint::MAX);
    }
    let mut kept = Vec::new();
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        let (number, file) = match receive(socket, flags) {
            Ok(Some(received)) => received,
            // There is no more for now.
            Err(Errno::AGAIN) => {
                flags.remove(RecvFlags::DONTWAIT);
                continue;
            }
            Err(Errno::INTR) => continue,
            Ok(None) | Err(_) => break,
        };
        kept.retain(|&kept| kept != number);
        // SAFETY: the number is one that this process uses for nothing but such a file.
        unsafe {
            match file {
                Some(file) => kept.extend(place(file, number)),
                None => _ = libc::close(number),
            }
        }
        if !flags.contains(RecvFlags::DONTWAIT) {
            flags.insert(RecvFlags::DONTWAIT);
            std::thread::sleep(GATHERING);
        }
    }
    // SAFETY: each of these numbers is that of a file, which no other value owns.
    let mut files: Vec<File> = kept.into_iter().map(|number| unsafe { File::from_raw_fd(number) }).collect();
    let [mut pause, longest] = PAUSES;
    loop {
        files.retain(|file| name_of(file).is_some_and(|name| !is_put(file, &name)));
        if files.is_empty() {
            // SAFETY: this ends this process only.
            unsafe { libc::_exit(0) }
        }
        std::thread::sleep(pause);
        pause = longest.min(2 * pause);
    }
}

/// Receives a number and perhaps a file. Returns `None` if gprofinject has ended.
///
/// # Errors
/// There is nothing to receive, or the system call fails.
fn receive(socket: &OwnedFd, flags: RecvFlags) -> Result<Option<(RawFd, Option<OwnedFd>)>, Errno> {
    let mut number = [0; size_of::<RawFd>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut number)], &mut control, flags)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes == number.len()).then(|| (RawFd::from_ne_bytes(number), file)))
}

/// Gives a file this number, and returns the number if that was possible.
///
/// # Safety
/// If the number is in use, then by no value of this process.
unsafe fn place(file: OwnedFd, number: RawFd) -> Option<RawFd> {
    if file.as_raw_fd() == number {
        return Some(file.into_raw_fd());
    }
    // SAFETY: the caller has promised that nobody misses what has had the number.
    let placed = unsafe { libc::dup2(file.as_raw_fd(), number) };
    (placed == number).then_some(number)
}

/// Returns the path of the link to a memory file, which is its name, if there is still one.
fn name_of(file: &File) -> Option<PathBuf> {
    let shown = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let name = proc::memory_file_name(shown.to_str()?)?;
    name.is_symlink().then(|| name.to_owned())
}

/// Puts a memory file in place of the links to it, unless a process counts in it. Returns whether it is there.
fn is_put(file: &File, name: &Path) -> bool {
    // Without room for it, the file is kept here.
    sys::is_mapped_for_writing(file) == Some(false) && put(file, name).is_ok()
}

fn put(file: &File, name: &Path) -> io::Result<()> {
    let target = fs::read_link(name)?;
    let [copy, link] = ["copy.new", "link.new"].map(|fresh| name.with_file_name(fresh));
    let _ = fs::remove_file(&copy);
    sys::copy_data(file, &copy).inspect_err(|_| _ = fs::remove_file(&copy))?;
    // Processes that run the same program have the same plan.
    for entry in fs::read_dir(name.with_file_name(""))? {
        let entry = entry?.path();
        if fs::read_link(&entry).is_ok_and(|found| found == target) {
            fs::hard_link(&copy, &link)?;
            fs::rename(&link, &entry)?;
        }
    }
    fs::remove_file(&copy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::os::memory_files;

    #[test]
    fn files_are_kept_until_they_are_released() {
        let heir = Heir::start().expect("a process");
        let file = memory_files::empty_memory_file(Path::new("kept")).expect("made");
        let theirs = heir.folder().join("fd").join(file.as_raw_fd().to_string());
        let has_it = || fs::read_link(&theirs).is_ok_and(|shown| shown.ends_with("memfd:kept (deleted)"));
        let until = |wanted: bool| {
            while has_it() != wanted {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        heir.keep(&file);
        until(true);
        heir.release(&file);
        until(false);
        assert_eq!(fs::read_dir(heir.folder().join("fd")).expect("readable").count(), 1, "the socket alone");
        let folder = heir.folder();
        drop(heir);
        assert!(!folder.exists());
    }

    #[test]
    fn files_are_put_in_place_of_links_when_nobody_counts() {
        let place = tempfile::tempdir().expect("a folder");
        let name = place.path().join("0.region");
        let file = memory_files::empty_memory_file(&name).expect("made");
        file.set_len(1 << 30).expect("resized");
        file.write_all_at(b"counts", 1 << 29).expect("written");
        let second = place.path().join("1.region");
        for name in [&name, &second] {
            std::os::unix::fs::symlink("/proc/0/fd/0", name).expect("linked");
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this is a new mapping, which is neither read nor written.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert!(at != libc::MAP_FAILED && !is_put(&file, &name) && name_of(&file).as_ref() == Some(&name));
        // SAFETY: this is that mapping, and nothing else.
        assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
        assert!(is_put(&file, &name) && name_of(&file).is_none());
        let mut bytes = [0; 8];
        let put = File::open(&second).expect("put");
        put.read_exact_at(&mut bytes, (1 << 29) - 1).expect("read");
        assert_eq!((&bytes, put.metadata().expect("readable").len()), (b"\0counts\0", 1 << 30));
    }
}
