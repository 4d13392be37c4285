//! A thread that reads what processes have counted, after their ends, so that those which still run need not wait for it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::generated::Origin;
use crate::os::{beside, sys};
use crate::profile::baseline::Baseline;
use crate::profile::counted::{Counted, Reading, counted};
use crate::profile::elsewhere::{InFile, Names};
use crate::profile::ends::End;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::plan_cache::PlanCache;
use crate::program::profilee::Profilee;
use crate::sampling::maps::Maps;
use crate::sampling::samples::Samples;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::AgentState;

/// The number of processes whose counts wait to be read at most. Each keeps its files.
const WAITING: usize = 32;

/// A process that has ended, and what has to be known to read its counts. The fields are those of [`Reading`] and the arguments
/// of [`counted`].
pub(crate) struct Ended {
    /// The index of the member that it was.
    pub(crate) member: usize,
    pub(crate) region: Option<RegionFile>,
    pub(crate) profilee: &'static Profilee,
    pub(crate) libraries: Numbered<Library>,
    pub(crate) maps: Maps,
    pub(crate) origin: Origin,
    pub(crate) rate: u32,
    pub(crate) end: End,
    pub(crate) own_call: Option<InFile>,
    pub(crate) is_part: bool,
    pub(crate) has_own: bool,
    pub(crate) samples: Option<Samples>,
    pub(crate) crash: Option<u64>,
    pub(crate) baseline: Option<Baseline>,
}

/// What such a process has counted.
pub(crate) struct Read {
    pub(crate) member: usize,
    pub(crate) counted: Counted,
    pub(crate) state: AgentState,
    pub(crate) troubles: Vec<String>,
    /// Whether its counts had been set to zero.
    pub(crate) was_reset: bool,
}

impl Ended {
    /// Reads the counts. `names` keeps what was read of files for the next process.
    fn read(self, names: &mut Names) -> Read {
        let reading = Reading {
            profilee: self.profilee,
            libraries: &self.libraries,
            maps: &self.maps,
            origin: Some(&self.origin),
            rate: self.rate,
            end: self.end,
            own_call: self.own_call.as_ref(),
            is_part: self.is_part,
            has_own: self.has_own,
        };
        let (region, baseline) = (self.region.as_ref(), self.baseline.as_ref());
        let mut troubles = Vec::new();
        let (counted, state, _) =
            counted(region, &reading, self.samples, self.crash, baseline, &mut troubles, names);
        Read { member: self.member, counted, state, troubles, was_reset: baseline.is_some() }
    }
}

/// The processes that have ended and whose counts are being read.
pub(crate) struct Counting {
    /// The functions of files in which processes were sampled.
    names: Arc<Mutex<Names>>,
    thread: Option<Thread>,
    /// The number of processes that the thread has been given, and whose counts were not taken back.
    waiting: usize,
}

struct Thread {
    ended: Sender<Ended>,
    read: Receiver<Read>,
    /// One byte for each process whose counts were read.
    wakes: File,
    thread: JoinHandle<()>,
}

impl Counting {
    pub(crate) fn new(cache: Arc<PlanCache>) -> Counting {
        Counting { names: Arc::new(Mutex::new(Names::new(cache))), thread: None, waiting: 0 }
    }

    /// Returns the functions of files in which processes were sampled. The thread waits for them in the meantime.
    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        locked(&self.names)
    }

    /// Reads the counts of a process now.
    pub(crate) fn read(&self, ended: Ended) -> Read {
        ended.read(&mut self.names())
    }

    /// Gives a process to the thread, which begins with the first one.
    ///
    /// # Errors
    /// There is no thread, or too many processes wait. The process is given back.
    pub(crate) fn give(&mut self, ended: Ended) -> Result<(), Box<Ended>> {
        if self.waiting >= WAITING {
            return Err(Box::new(ended));
        }
        if self.thread.is_none() {
            self.thread = begin(Arc::clone(&self.names));
        }
        match &self.thread {
            Some(thread) => thread.ended.send(ended).map_err(|error| Box::new(error.0))?,
            None => return Err(Box::new(ended)),
        }
        self.waiting += 1;
        Ok(())
    }

    /// Returns the descriptor that is readable when counts were read.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.thread.as_ref().map(|thread| thread.wakes.as_raw_fd())
    }

    /// Takes note that the [descriptor](Counting::descriptor) is among those that are `readable`.
    pub(crate) fn wake(&mut self, readable: &[RawFd]) {
        if let Some(thread) = &mut self.thread
            && readable.contains(&thread.wakes.as_raw_fd())
        {
            let _ = thread.wakes.read(&mut [0; WAITING]);
        }
    }

    /// Takes back the counts of the next process if they were read, or, with `waits`, when they were read. Returns `None` if there are none, or
    /// no process is left.
    pub(crate) fn take(&mut self, waits: bool) -> Option<Read> {
        let thread = self.thread.as_ref().filter(|_| self.waiting > 0)?;
        let read = if waits { thread.read.recv().ok() } else { thread.read.try_recv().ok() }?;
        self.waiting -= 1;
        Some(read)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // The thread may still write to the pipe, so the reading end is closed last.
        if let Some(Thread { ended, read, thread, wakes: _wakes }) = self.thread.take() {
            drop((ended, read));
            let _ = thread.join();
        }
    }
}

/// Begins the thread. Returns `None` if there can be none; the caller then reads all counts itself.
fn begin(names: Arc<Mutex<Names>>) -> Option<Thread> {
    let (wakes, mut wake) = sys::pipe().map(|(read, write)| (File::from(read), File::from(write))).ok()?;
    let (ended, all) = channel::<Ended>();
    let (done, read) = channel();
    let work = move || {
        for ended in all {
            let turn = beside::turn();
            let read = ended.read(&mut locked(&names));
            drop(turn);
            if done.send(read).is_err() {
                return;
            }
            // There is always room: no more than so many wait.
            let _ = wake.write(&[0]);
        }
    };
    let thread = thread::Builder::new().name("counting".to_owned()).spawn(work).ok()?;
    Some(Thread { ended, read, wakes, thread })
}

fn locked(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}
