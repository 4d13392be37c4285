//! What /proc shows of another process.
#![allow(unsafe_code, reason = "it makes an ioctl, for which no crate has a function")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::os::memory_files;

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) lo: u64,
    pub(crate) hi: u64,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// The path, or an empty string for an anonymous mapping.
    pub(crate) path: String,
}

impl Mapping {
    /// The path that the file had, also if it was removed. A memory file has its name, which for those of a run is the path of the
    /// link to it.
    pub(crate) fn named(&self) -> &str {
        named(&self.path)
    }
}

/// Returns [`Mapping::named`] for a path that the kernel shows.
pub(crate) fn named(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.strip_prefix(memory_files::MEMORY_FILE).unwrap_or(path)
}

/// Returns the name of a memory file, if that is a path. `shown` is what the kernel shows for it.
pub(crate) fn memory_file_name(shown: &str) -> Option<&Path> {
    let name = Path::new(shown.strip_prefix(memory_files::MEMORY_FILE)?.strip_suffix(" (deleted)")?);
    name.is_absolute().then_some(name)
}

/// Returns the mappings of a process, in the order of their addresses.
///
/// # Errors
/// The process has ended, or the injector may not examine it.
pub(crate) fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{}/maps", visible_thread(pid)))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(mapping).collect())
}

/// Returns the name of a process's program, as its mappings have it.
pub(crate) fn program(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{}/exe", visible_thread(pid))).ok()
}

/// Returns the ELF file that the kernel maps into each process as `[vdso]`, as this process has it: it is the same in all.
///
/// # Errors
/// There is none, or this process may not be read.
pub(crate) fn own_vdso() -> io::Result<Vec<u8>> {
    let maps = mappings(std::process::id() as i32)?;
    let vdso = maps.iter().find(|mapping| mapping.path == "[vdso]").ok_or(io::ErrorKind::NotFound)?;
    let mut bytes = vec![0; (vdso.hi - vdso.lo) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, vdso.lo)?;
    Ok(bytes)
}

/// Returns the text of a file that the kernel makes, which is short. (The standard library begins with a few bytes and reads many times,
/// because such a file has no length.)
///
/// # Errors
/// It cannot be opened or read.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    /// What the kernel makes at once for most of them.
    const USUAL: usize = 4096;
    let mut text = String::with_capacity(USUAL);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the value of a variable in the environment with which the process has begun to execute its program, if it is there. Of one that is
/// there twice, the first one counts.
///
/// # Errors
/// The process has ended, or its environment may not be read.
pub(crate) fn variable(pid: i32, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    /// The kernel passes no more than a quarter of the stack's limit, which is 8 MiB by default.
    const MOST: u64 = 4 << 20;
    let mut all = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(MOST).read_to_end(&mut all)?;
    let mut entries = all.split(|&byte| byte == 0);
    Ok(entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"=")).map(<[u8]>::to_vec))
}

/// Returns the process's parent, or `None` if it has ended.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    Status::of(pid).ok()?.field("PPid")?.parse().ok()
}

/// What the kernel says of a process or a thread in its `status` file (proc_pid_status(5)).
pub(crate) struct Status(String);

impl Status {
    /// # Errors
    /// There is no such process.
    pub(crate) fn of(pid: i32) -> io::Result<Status> {
        text(format!("/proc/{pid}/status")).map(Status)
    }

    /// # Errors
    /// The process has no such thread.
    pub(crate) fn of_thread(pid: i32, tid: i32) -> io::Result<Status> {
        text(format!("/proc/{pid}/task/{tid}/status")).map(Status)
    }

    /// Returns the value of a field, or `None` if the kernel does not tell it.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns the number of the process or thread in its own PID namespace, the innermost one, if the kernel tells that.
    pub(crate) fn number_inside(&self) -> Option<i32> {
        self.field("NSpid")?.split_ascii_whitespace().next_back()?.parse().ok()
    }
}

/// How seccomp restricts a thread's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seccomp {
    /// Not at all, or the kernel does not have it.
    Off,
    /// To read, write, exit and sigreturn.
    Strict,
    Filters,
}

/// Returns how seccomp restricts a thread's system calls, or `None` if the thread has ended.
pub(crate) fn seccomp(pid: i32, tid: i32) -> Option<Seccomp> {
    Some(match Status::of_thread(pid, tid).ok()?.field("Seccomp") {
        None | Some("" | "0") => Seccomp::Off,
        Some("1") => Seccomp::Strict,
        Some(_) => Seccomp::Filters,
    })
}

/// Whether all seccomp filters of a descendant of this process are inherited from it. They are if they are as many: filters are only
/// added. A kernel before 5.9 does not tell how many there are, only whether there are some.
pub(crate) fn are_filters_own(pid: i32) -> bool {
    let own = std::process::id() as i32;
    match (number_of_filters(own, own), number_of_filters(pid, pid)) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => seccomp(own, own) == seccomp(pid, pid),
    }
}

/// Returns how many seccomp filters a thread has, or `None` if it has ended or the kernel, which is older than 5.9, does not tell.
fn number_of_filters(pid: i32, tid: i32) -> Option<u32> {
    Status::of_thread(pid, tid).ok()?.field("Seccomp_filters")?.parse().ok()
}

/// Returns the number that a thread has in its own PID namespace, the innermost one, or the same number if the kernel does not tell.
pub(crate) fn number_inside(pid: i32, tid: i32) -> i32 {
    Status::of_thread(pid, tid).ok().and_then(|status| status.number_inside()).unwrap_or(tid)
}

/// Returns the processes that have this number in a PID namespace of their own, which lies in this one, with their numbers here.
pub(crate) fn with_number_inside(number: i32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|&pid| pid != number && number_inside(pid, pid) == number).collect()
}

/// The kernel's USER_HZ, which is the same on all x86-64 systems.
const TICKS_PER_SECOND: u64 = 100;

/// Returns how long ago a process began, or `None` if it has ended.
pub(crate) fn age(pid: i32) -> Option<Duration> {
    /// The place of this field (`starttime` in proc_pid_stat(5)) after the name.
    const FIELD: usize = 19;
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is in parentheses and may contain some.
    let began: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(FIELD)?.parse().ok()?;
    let began = Duration::from_millis(began.saturating_mul(1000 / TICKS_PER_SECOND));
    let now = clock_gettime(ClockId::Boottime);
    Some(Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_sub(began))
}

/// Returns the name and the CPU time of a thread, in milliseconds, or `None` if it has ended.
pub(crate) fn thread(pid: i32, tid: i32) -> Option<(String, u64)> {
    let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is in parentheses and may contain some.
    let (before, after) = stat.rsplit_once(") ")?;
    let name = before.split_once('(')?.1.to_owned();
    let mut fields = after.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()?.checked_add(ticks()?)?;
    Some((name, ticks.saturating_mul(1000 / TICKS_PER_SECOND)))
}

/// Returns the inode number of the file that a process has mapped at an address; 0 if that is no file.
///
/// # Errors
/// Nothing is mapped there, the process has ended, or the injector may not examine it.
pub(crate) fn inode_at(pid: i32, address: u64) -> io::Result<u64> {
    // The kernel finds one mapping of thousands sooner than it lists all of them.
    match query(&File::open(format!("/proc/{}/maps", visible_thread(pid)))?, address) {
        Ok(found) => return Ok(found.inode),
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
        Err(error) => return Err(error),
    }
    // A kernel before 6.11.
    let mappings = mappings(pid)?;
    let mapping = mappings.iter().find(|mapping| (mapping.lo..mapping.hi).contains(&address));
    mapping.map(|mapping| mapping.inode).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    permissions: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

/// Asks the kernel about the mapping that contains an address. `maps` is a process's file of that name.
fn query(maps: &File, address: u64) -> io::Result<Query> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u32 = 0xc068_6611;
    const { assert!(size_of::<Query>() == 0x68) };
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the kernel reads and writes the structure, whose length is part of the request, and nothing else, because
    // the lengths of both buffers are 0.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(query) }
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (lo, hi) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let permissions = fields.next()?;
    let offset = hex(fields.next()?)?;
    let inode = fields.nth(1)?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start();
    Some(Mapping {
        lo: hex(lo)?,
        hi: hex(hi)?,
        writable: permissions.contains('w'),
        executable: permissions.contains('x'),
        offset,
        inode,
        path: path.to_owned(),
    })
}

/// Returns the thread whose folder in /proc describes the process: the main thread as long as it lives, and
/// then another one. Once the main thread has ended, /proc/PID itself shows neither mappings nor an auxiliary
/// vector.
pub(crate) fn visible_thread(pid: i32) -> i32 {
    if !has_ended(pid, pid) {
        return pid;
    }
    let threads = thread_ids(pid).unwrap_or_default();
    threads.into_iter().find(|&tid| !has_ended(pid, tid)).unwrap_or(pid)
}

/// Returns the auxiliary vector, in which the kernel describes a program when it begins: pairs of type and
/// value. If addresses are randomised, no two programs have the same vector, so it distinguishes a program
/// from the next one that the process executes.
///
/// # Errors
/// The process has ended, or the injector may not examine it.
pub(crate) fn auxiliary(pid: i32) -> io::Result<Vec<[u64; 2]>> {
    let bytes = fs::read(format!("/proc/{}/auxv", visible_thread(pid)))?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    Ok(bytes.chunks_exact(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect())
}

/// Whether a thread has ended, or is not one of the process.
pub(crate) fn has_ended(pid: i32, tid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Returns whether a process has no threads but those that have just been listed. If one of them has ended meanwhile, this is not
/// known, and the answer is no. `stands` is whether a thread stands still, so that it cannot end.
///
/// # Errors
/// The process has ended.
pub(crate) fn are_all_threads(pid: i32, ids: &[i32], stands: impl Fn(i32) -> bool) -> io::Result<bool> {
    // If all threads that were listed exist after they were counted, and the number is the same, then there were no others.
    let count = number_of_threads(pid)?;
    let exists = |tid: i32| stands(tid) || fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(false);
    Ok(ids.len() == count && ids.iter().all(|&tid| exists(tid)))
}

/// Returns the number of a process's threads, which include those that are about to end.
fn number_of_threads(pid: i32) -> io::Result<usize> {
    /// The place of this field (`num_threads` in proc_pid_stat(5)) after the name.
    const FIELD: usize = 17;
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is in parentheses and may contain some.
    let field = stat.rsplit_once(") ").and_then(|(_, after)| after.split(' ').nth(FIELD)?.parse().ok());
    field.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns the numbers of the threads of a process. If a thread ends meanwhile, the kernel may leave out others, which
/// [`are_all_threads`] notices.
///
/// # Errors
/// The process has ended.
pub(crate) fn thread_ids(pid: i32) -> io::Result<Vec<i32>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(ids)
}

/// Whether the kernel promises memory before it is used (vm.overcommit_memory), so that there may be none for a page of a memory file
/// although there is memory. The access to the page would end the process.
pub(crate) fn is_memory_promised() -> bool {
    const NEVER_TOO_MUCH: &str = "2";
    static IS_IT: OnceLock<bool> = OnceLock::new();
    *IS_IT.get_or_init(|| {
        text("/proc/sys/vm/overcommit_memory").map_or(true, |mode| mode.trim() == NEVER_TOO_MUCH)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_at_an_address() {
        use std::os::unix::fs::MetadataExt;
        let own = std::process::id() as i32;
        let code = the_file_at_an_address as *const () as u64;
        let program = fs::metadata("/proc/self/exe").expect("this program").ino();
        assert_eq!(inode_at(own, code).ok(), Some(program));
        let on_the_stack = 0_u8;
        assert_eq!(inode_at(own, &raw const on_the_stack as u64).ok(), Some(0));
        assert!(inode_at(own, 0).is_err());
    }

    #[test]
    fn all_threads_of_a_process() {
        let own = std::process::id() as i32;
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let more = std::thread::spawn(move || wait.recv());
        let ids = thread_ids(own).expect("this process");
        assert!(ids.len() >= 2 && ids.contains(&own));
        // Threads of other tests may begin and end meanwhile.
        let all = || are_all_threads(own, &thread_ids(own).expect("this process"), |_| false);
        assert!((0..1000).any(|_| all().expect("this process")));
        let some = || are_all_threads(own, &thread_ids(own).expect("this process")[1..], |_| false);
        assert!((0..100).any(|_| !some().expect("this process")));
        drop(release);
        assert!(more.join().expect("it ends").is_err());
        assert!(are_all_threads(0, &[], |_| true).is_err());
    }

    #[test]
    fn lines_of_maps() {
        let line = "7f0000001000-7f0000003000 r-xp 00026000 08:01 1234                       /lib/a b.so";
        let expected = Mapping {
            lo: 0x7f00_0000_1000,
            hi: 0x7f00_0000_3000,
            writable: false,
            executable: true,
            offset: 0x26000,
            inode: 1234,
            path: "/lib/a b.so".into(),
        };
        assert_eq!(mapping(line), Some(expected));
        let line = "55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0 ";
        assert_eq!(
            mapping(line).map(|m| (m.writable, m.executable, m.path)),
            Some((true, false, String::new()))
        );
        assert_eq!(mapping("nonsense"), None);
    }
}
