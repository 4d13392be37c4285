//! A process that continues gprofinject when the program goes on.
//!
//! gprofinject stops when a signal has stopped the program, as a shell with job control expects. `fg` continues both, but whoever has
//! stopped the program alone may continue it alone; nobody would read what it writes from then on. A stopped process cannot look
//! itself, so a child does that.
#![allow(unsafe_code, reason = "it forks a process that may only make async-signal-safe calls")]

use std::ffi::CString;

use crate::os::sys;

/// How long the waker sleeps before it looks again.
const NAP_NS: libc::c_long = 10_000_000;

/// The waker. It ends when this is dropped.
pub(super) struct Waker {
    pid: i32,
}

impl Waker {
    /// Forks a process that continues this one while `pid` is not stopped. Returns `None` if there can be no such process; then this
    /// one stays stopped until someone else continues it.
    pub(super) fn start(pid: i32) -> Option<Waker> {
        let own = std::process::id() as i32;
        let [program, ours] = [pid, own].map(|pid| CString::new(format!("/proc/{pid}/stat")));
        let (program, ours) = (program.ok()?, ours.ok()?);
        let blocked = sys::block_signals();
        // Without a signal at its end, this is no child that `wait` finds when gprofinject looks whether any is left.
        // SAFETY: without flags this is a fork. The child runs only `wake`, which makes system calls and does not return.
        let waker = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if waker == 0 {
            wake(&program, &ours, own);
        }
        sys::unblock_signals(&blocked);
        (waker > 0).then_some(Waker { pid: waker as i32 })
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: the process is a child of this one that nobody else waits for, and no status is asked for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WCLONE);
        }
    }
}

/// The main function of the waker.
fn wake(program: &CString, ours: &CString, parent: i32) -> ! {
    // SAFETY: the arguments are numbers, and names that the kernel copies. No descriptor is used that was open before.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-waker".as_ptr());
        sys::close_range(0, libc::c_uint::MAX);
        while libc::getppid() == parent {
            if !is_stopped(program) && is_stopped(ours) {
                libc::kill(parent, libc::SIGCONT);
            }
            let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
            libc::nanosleep(&nap, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

/// Returns whether a process is stopped, by its file in /proc. It is, if the file cannot be read for want of permission; it is not, if
/// the process is gone.
fn is_stopped(file: &CString) -> bool {
    let mut text = [0_u8; 256];
    // SAFETY: the buffer is as long as the length says, and the name is a string. Only system calls are made.
    let len = unsafe {
        let fd = libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return *libc::__errno_location() != libc::ENOENT;
        }
        let len = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        len
    };
    // The state follows the name, which is in parentheses and may contain any others.
    let text = text.get(..len.max(0) as usize).unwrap_or_default();
    let end = text.iter().rposition(|&byte| byte == b')');
    let state = end.and_then(|end| text.get(end + 2));
    matches!(state, Some(b'T' | b't'))
}
