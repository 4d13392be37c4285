//! Starts the program exactly as a shell would, but holds it back until everything is ready.
#![allow(unsafe_code, reason = "it forks and executes the program")]

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use gprofinject_abi::{PRELOAD_VARIABLE, RUN_VARIABLE};

use crate::os::early;
use crate::os::limits::Limits;
use crate::os::scheduling::Scheduling;
use crate::os::signals::Inherited;
use crate::os::sys::{self, c_string};
use crate::program::resolve::Program;
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::launch::standing::Standing;
use crate::target::launch::streams::Streams;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// A child that waits to execute the program.
pub(crate) struct Held {
    pid: i32,
    go: OwnedFd,
    errors: File,
}

/// A child that executes the program.
pub(crate) struct Child {
    errors: File,
}

/// What the program gets apart from its arguments.
pub(crate) struct Given<'g> {
    pub(crate) limits: Limits,
    pub(crate) scheduling: Scheduling,
    pub(crate) streams: &'g Streams,
    pub(crate) standing: &'g Standing,
}

/// The arguments of execve, all of them prepared before the fork.
struct Exec {
    path: CString,
    argv: Vec<CString>,
    /// The arguments for /bin/sh, which executes files whose format execve does not know.
    shell_argv: Option<Vec<CString>>,
    env: Vec<CString>,
    /// The number of the agent's variables, at the end of `env`.
    added: usize,
}

/// Forks the child. With `run_folder`, the program will find the agent there.
///
/// # Errors
/// The process cannot be forked, or a string contains a zero byte.
pub(crate) fn hold(
    program: &Program,
    run_folder: Option<&RunFolder>,
    inherited: Inherited,
    given: &Given,
) -> io::Result<Held> {
    let exec = Exec::new(program, run_folder)?;
    let argv = pointers(&exec.argv);
    let shell_argv = exec.shell_argv.as_deref().map(pointers);
    let mut env = pointers(&exec.env);
    let (wait, go) = sys::pipe()?;
    let (errors, report) = sys::pipe()?;
    // SAFETY: this process has one thread, so the child may do anything. It does little, and ends by exec or
    // _exit, never by returning.
    match sys::check(unsafe { libc::fork() })? {
        0 => {
            drop(go);
            drop(errors);
            let released = File::from(wait).read(&mut [0]).is_ok_and(|count| count == 1);
            if released {
                inherited.restore(early::pipe_ignored());
                close_stand_ins();
                given.streams.give();
                given.standing.take_self();
                // The limits come last, because they may allow nothing of this.
                let scheduled = given.scheduling.restore();
                given.limits.restore();
                let mut errno = match scheduled {
                    Ok(()) => try_exec(&exec.path, &argv, shell_argv.as_deref(), &env),
                    Err(error) => error.raw_os_error().unwrap_or(libc::EPERM),
                };
                if errno == libc::E2BIG && exec.added > 0 {
                    // There is room for the user's own variables, perhaps.
                    if let Some(first) = env.get_mut(exec.env.len() - exec.added) {
                        *first = ptr::null();
                    }
                    errno = try_exec(&exec.path, &argv, shell_argv.as_deref(), &env);
                }
                let _ = File::from(report).write_all(&errno.to_ne_bytes());
            }
            // SAFETY: this ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(127) }
        }
        pid => Ok(Held { pid, go, errors: errors.into() }),
    }
}

/// Executes the program in place of this process, which has made no other process and has taken over no signal. Returns only if that fails,
/// with errno.
///
/// # Errors
/// A string contains a zero byte.
pub(crate) fn replace(program: &Program, limits: Limits, scheduling: Scheduling) -> io::Result<i32> {
    let exec = Exec::new(program, None)?;
    let (argv, env) = (pointers(&exec.argv), pointers(&exec.env));
    let shell_argv = exec.shell_argv.as_deref().map(pointers);
    early::restore_file_size();
    early::restore_pipe();
    close_stand_ins();
    scheduling.restore()?;
    limits.restore();
    Ok(try_exec(&exec.path, &argv, shell_argv.as_deref(), &env))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Closes what was closed when the injector was started.
fn close_stand_ins() {
    for fd in early::closed_descriptors() {
        // SAFETY: Rust's runtime has opened it as a stand-in, and nothing is written to it from here on.
        unsafe { libc::close(fd) };
    }
}

/// Executes the program. Returns only if that fails, with errno.
fn try_exec(
    path: &CStr,
    argv: &[*const c_char],
    shell_argv: Option<&[*const c_char]>,
    env: &[*const c_char],
) -> i32 {
    // SAFETY: these are arrays of C strings that end in a null pointer. They live in this process, which is a
    // copy of the one that owns them.
    unsafe {
        libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr());
        if let Some(shell_argv) = shell_argv
            && *libc::__errno_location() == libc::ENOEXEC
        {
            libc::execve(c"/bin/sh".as_ptr(), shell_argv.as_ptr(), env.as_ptr());
        }
        *libc::__errno_location()
    }
}

impl Held {
    /// The child's process number.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets the child execute the program.
    ///
    /// # Errors
    /// The child has ended.
    pub(crate) fn release(self) -> io::Result<Child> {
        File::from(self.go).write_all(&[1])?;
        Ok(Child { errors: self.errors })
    }
}

impl Child {
    /// Returns the errno with which exec has failed, if it has. To be called after the child's end.
    pub(crate) fn exec_error(mut self) -> Option<i32> {
        let mut errno = [0; 4];
        self.errors.read_exact(&mut errno).ok().map(|()| i32::from_ne_bytes(errno))
    }
}

impl Exec {
    fn new(program: &Program, run_folder: Option<&RunFolder>) -> io::Result<Exec> {
        let path = c_string(program.path.as_os_str())?;
        let argv = program.argv.iter().map(|word| c_string(word)).collect::<io::Result<Vec<_>>>()?;
        let shell_argv = program.shell_if_refused.then(|| {
            let arguments = argv.iter().skip(1).cloned();
            [c"/bin/sh".to_owned(), path.clone()].into_iter().chain(arguments).collect()
        });
        let mut env = environment();
        if let Some((name, value)) = program.variable {
            // Most programs obey the first one of a name.
            env.retain(|entry| {
                entry.as_bytes().strip_prefix(name.as_bytes()).is_none_or(|rest| !rest.starts_with(b"="))
            });
            env.push(variable(name, value.as_bytes())?);
        }
        let own = env.len();
        if let Some(folder) = run_folder {
            inject(&mut env, &folder.libraries(), &folder.path().join(FIRST))?;
        }
        let added = env.len() - own;
        Ok(Exec { path, argv, shell_argv, env, added })
    }
}

/// Returns the injector's environment exactly as the kernel has passed it, with duplicate and malformed
/// entries.
fn environment() -> Vec<CString> {
    let mut env = Vec::new();
    // SAFETY: libc keeps `environ` an array of C strings that ends in a null pointer, and null itself only
    // if it was cleared; nothing here changes the environment.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            env.push(CStr::from_ptr(*entry).to_owned());
            entry = entry.add(1);
        }
    }
    env
}

/// Adds the agent's variables at the end, as the agent does for programs that are executed later. The user's own variables stay
/// as they are; the dynamic linker and the agent obey the last ones.
fn inject(env: &mut Vec<CString>, libraries: &[PathBuf], place: &Path) -> io::Result<()> {
    let value = |entry: &CString| {
        let rest = entry.as_bytes().strip_prefix(PRELOAD_VARIABLE.as_bytes())?;
        rest.strip_prefix(b"=").map(<[u8]>::to_vec)
    };
    let own: Option<Vec<u8>> = env.iter().rev().find_map(value);
    let ours = libraries.iter().map(|library| library.as_os_str().as_bytes());
    let preload: Vec<&[u8]> = ours.chain(own.as_deref()).collect();
    env.push(variable(PRELOAD_VARIABLE, &preload.join(&b':'))?);
    env.push(variable(RUN_VARIABLE, place.as_os_str().as_bytes())?);
    Ok(())
}

fn variable(name: &str, value: &[u8]) -> io::Result<CString> {
    c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_variables_come_last() {
        let entry = |text: &str| CString::new(text).expect("no zero byte");
        let mut env = ["A=1", "LD_PRELOAD=w.so", "LD_PRELOAD=x.so", "odd"].map(entry).to_vec();
        let libraries = ["/run/f/libgprofinject.so", "/run/f/libgprofinject-frida.so"].map(PathBuf::from);
        inject(&mut env, &libraries, Path::new("/run/f/0")).expect("no zero byte");
        let expected = [
            "A=1",
            "LD_PRELOAD=w.so",
            "LD_PRELOAD=x.so",
            "odd",
            "LD_PRELOAD=/run/f/libgprofinject.so:/run/f/libgprofinject-frida.so:x.so",
            "GPROFINJECT_RUN=/run/f/0",
        ];
        assert_eq!(env, expected.map(entry));
    }
}
