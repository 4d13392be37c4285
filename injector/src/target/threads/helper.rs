//! A process of the injector's own that does what must not be left half done: while a thread is borrowed, or
//! code is half written, only the process that traces the threads can restore them.
//!
//! The injector forks a helper for each order. The helper has a session of its own and blocks all signals, so
//! it finishes the order even if the injector is killed. It answers through a pipe. Changes that it makes to
//! the injector's values are made to copies. An order has a time limit (`deadline`), which another process
//! enforces (`guard`).
#![allow(unsafe_code, reason = "it forks the helper and blocks signals around the fork")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::os::sys::{self, check};
use crate::os::{beside, proc, signals};
use crate::store::private_folder::PrivateFolder;
use crate::target::threads::urgency;
use crate::target::threads::{deadline, guard};

/// For how long the injector waits for another gprofinject's order: as long as an order can take.
const PATIENCE: Duration = Duration::from_secs(deadline::LAST.as_secs() + 5);
/// For how long the injector waits for a lock of another user's process, which may be the target itself.
const FOREIGN_PATIENCE: Duration = Duration::from_secs(2);
/// For how long an order may continue when the injector is asked to end.
const GRACE: Duration = Duration::from_secs(5);

/// The process that has given the order; `None` if this process has given it itself.
pub(crate) struct Client(Option<File>);

impl Client {
    /// Whether the client still waits for the answer.
    pub(crate) fn is_there(&self) -> bool {
        let Some(answer) = &self.0 else { return true };
        let mut polled = libc::pollfd { fd: answer.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: the array has one entry. The writing end of a pipe that nobody reads reports an error.
        unsafe { libc::poll(&mut polled, 1, 0) };
        polled.revents & libc::POLLERR == 0
    }
}

/// Makes a helper carry out `work` and returns its result. `work` may not use a descriptor that was open
/// before, except that of `folder`. Orders for the same process wait for each other.
///
/// # Errors
/// The helper cannot be forked or does not answer, or the process is locked for too long.
pub(crate) fn carry_out<T, W>(pid: i32, folder: Option<&PrivateFolder>, work: W) -> Result<T>
where
    T: Serialize + DeserializeOwned,
    W: FnOnce(&Client) -> T,
{
    if must_be_ancestors() {
        let _lock = lock(pid)?;
        deadline::begin();
        return Ok(work(&Client(None)));
    }
    let (read, write) = sys::pipe().context("no pipe can be made")?;
    // The helper holds the lock from its first instruction on. Otherwise the injector might be killed, and
    // another one come before the helper.
    let lock = lock(pid)?;
    let turn = beside::turn();
    urgency::share();
    let blocked = sys::block_signals();
    // SAFETY: no other thread of this process is at work whose results the child needs: their work is waited for, or they have a turn of their
    // own. The child uses copies of the parent's values, and ends without dropping those that it does
    // not own.
    let helper = check(unsafe { libc::fork() });
    if matches!(helper, Ok(0)) {
        serve(pid, write, lock, folder, work);
    }
    sys::unblock_signals(&blocked);
    drop(turn);
    let helper =
        helper.map_err(|error| anyhow!("no helper process can be created: {}", sys::reason(&error)))?;
    drop((write, lock));
    let answer = answer(&read)?;
    drop(read);
    let mut status = 0;
    // SAFETY: `status` is valid for the call, and the process is a child of this one.
    while unsafe { libc::waitpid(helper, &mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    if status != 0 {
        // The guard does the same, unless it was killed as well.
        urgency::take_back(pid);
    }
    serde_json::from_slice(&answer).ok().with_context(|| {
        format!("the helper process {helper} has ended before its work (status {status:#x})")
    })
}

/// Reads the helper's whole answer. If the injector is asked to end meanwhile, it waits for no longer than
/// [`GRACE`], and the helper continues alone.
fn answer(read: &OwnedFd) -> Result<Vec<u8>> {
    const OFTEN: Duration = Duration::from_millis(100);
    let mut answer = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let mut asked = None;
    let mut pipe = File::from(read.try_clone().context("no descriptor is left")?);
    loop {
        if sys::wait_readable(&[read.as_raw_fd()], Some(OFTEN)) {
            match pipe.read(&mut piece) {
                Ok(0) => return Ok(answer),
                Ok(count) => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    bail!("the answer of the helper process cannot be read: {}", sys::reason(&error))
                }
            }
        }
        if signals::is_end_wanted() && asked.get_or_insert_with(Instant::now).elapsed() > GRACE {
            bail!("interrupted; a helper process finishes what was begun");
        }
    }
}

/// The main function of the helper.
fn serve<T: Serialize, W: FnOnce(&Client) -> T>(
    pid: i32,
    write: OwnedFd,
    lock: Option<File>,
    folder: Option<&PrivateFolder>,
    work: W,
) -> ! {
    let mut kept =
        [Some(write.as_raw_fd()), lock.as_ref().map(File::as_raw_fd), folder.map(AsRawFd::as_raw_fd)];
    kept.sort();
    // SAFETY: these are descriptors of a process with a single thread, and no owner of one of them is used or
    // dropped.
    unsafe {
        libc::setsid();
        let mut from = 3;
        for fd in kept.into_iter().flatten().map(|fd| fd as libc::c_uint) {
            // There must be a descriptor in between: an empty range is an error.
            sys::close_range(from, fd - 1);
            from = fd + 1;
        }
        sys::close_range(from, libc::c_uint::MAX);
        if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
            for fd in 0..3 {
                libc::dup2(null.as_raw_fd(), fd);
            }
        }
    }
    deadline::begin();
    let guard = guard::Guard::start(pid);
    // Without a guard, no process would take the priorities back.
    if guard.is_some() {
        guard::limit_realtime();
        urgency::hurry();
    }
    let client = Client(Some(File::from(write)));
    let answer = serde_json::to_vec(&work(&client)).unwrap_or_default();
    drop(lock);
    if let Client(Some(mut write)) = client {
        // The client may have ended.
        let _ = write.write_all(&answer);
    }
    drop(guard);
    // SAFETY: this ends this process only.
    unsafe { libc::_exit(0) }
}

/// Waits until no helper is at work in the process, be it the helper of a gprofinject that was killed.
///
/// # Errors
/// A helper is at work for too long.
pub(crate) fn wait(pid: i32) -> Result<()> {
    lock(pid).map(drop)
}

/// Waits as [`wait`] does, and makes other helpers wait until the result is dropped. The lock is on a file
/// that only a process which may trace the target can open. The target itself can open it, too, and keep it
/// locked, so the time to wait depends on who holds the lock. Returns `None` if the process has ended or the
/// injector may not examine it.
///
/// # Errors
/// The lock is held for too long.
pub(crate) fn lock(pid: i32) -> Result<Option<File>> {
    let Ok(file) = File::open(format!("/proc/{}/maps", proc::visible_thread(pid))) else { return Ok(None) };
    let start = Instant::now();
    while !sys::lock(&file) {
        let waited = start.elapsed();
        if waited > PATIENCE || waited > FOREIGN_PATIENCE && !guard::holders_are_trusted(&file) {
            bail!(
                "another process keeps process {pid} locked (flock on /proc/{pid}/maps): another gprofinject, or the \
                 process itself; try again when that has ended"
            );
        }
        if signals::is_end_wanted() && waited > GRACE {
            bail!("interrupted while another gprofinject is at work in process {pid}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Some(file))
}

/// Whether the kernel lets only ancestors of a process trace it, so that this process has to do the work
/// itself.
pub(crate) fn must_be_ancestors() -> bool {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    sys::ids().euid != 0 && std::fs::read_to_string(SCOPE).is_ok_and(|scope| scope.trim() == "1")
}
