//! The programs of a run, each planned once, however many processes execute it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::os::sys;
use crate::program::plan_cache::key::ReadFor;
use crate::program::planned::Planned;
use crate::program::planner::Planner;
use crate::program::subject::is_file_of;
use crate::store::output::Output;
use crate::store::region::layout::Layout;
use crate::store::run_folder::PlanFile;

/// A program that is profiled. It lives as long as the injector: there are few programs, and all layers refer
/// to their parts.
pub(crate) struct Profilee {
    /// The number of the plan.
    pub(crate) number: u32,
    /// The file whose code is profiled.
    pub(crate) binary: PathBuf,
    /// The file's identity; `None` if it cannot be read.
    identity: Option<Identity>,
    /// The path of the copy that was kept; the inner value is `None` if none could be.
    copy: OnceLock<Option<PathBuf>>,
    /// The name of the file for a command line.
    pub(crate) shown: OsString,
    pub(crate) planned: &'static Planned<'static, 'static>,
    /// The plan file, if there is a plan, and the region file's layout.
    pub(crate) plan: Option<(PlanFile, Layout)>,
}

/// What identifies a file. Its name is not enough, because the file may be replaced.
pub(crate) type Identity = (u64, u64, u64, i64, i64);

/// All programs of a run.
#[derive(Default)]
pub(crate) struct Profilees {
    all: Vec<&'static Profilee>,
    known: HashMap<Identity, Result<&'static Profilee, String>>,
}

impl Profilee {
    /// Returns the name of the program's file.
    pub(crate) fn name(&self) -> String {
        let name = self.binary.file_name().unwrap_or(self.binary.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Returns the file in which gprof finds names.
    pub(crate) fn names_for_gprof(&self) -> OsString {
        self.planned.subject.names_for_gprof(&self.shown)
    }

    /// Whether a file is the program, or has the same bytes.
    pub(crate) fn is_found_as(&self, path: &Path) -> bool {
        let found = identity(path);
        if self.identity.is_none() || found == self.identity {
            return true;
        }
        let bytes = self.planned.subject.bytes;
        let same_size = found.is_some_and(|(_, _, size, ..)| size == bytes.len() as u64);
        same_size && is_file_of(path, bytes)
    }

    /// Returns the file in which gprof finds names after a profile was written, and a message about it. If
    /// there is no such file any more (a memfd, a deleted or replaced file, one of another mount namespace),
    /// it is a copy, which is kept beside the program's first profile.
    pub(crate) fn symbols_beside(&self, output: &Output, profile: &Path) -> (OsString, Option<String>) {
        let named = self.names_for_gprof();
        if self.planned.subject.separate_file().is_some() || self.is_found_as(Path::new(&named)) {
            return (named, None);
        }
        let mut note = None;
        let copy = self.copy.get_or_init(|| {
            let gone = format!("{} is gone, or another file here", self.binary.display());
            match output.keep_program(profile, self.planned.subject.bytes) {
                Ok(copy) => {
                    note = Some(format!("{gone}: {} is a copy of it, for gprof", copy.display()));
                    Some(copy)
                }
                Err(error) => {
                    let why = sys::reason(&error);
                    note = Some(format!("{gone}, and gprof needs it: no copy could be kept ({why})"));
                    None
                }
            }
        });
        (copy.as_ref().map_or(named, |copy| copy.clone().into()), note)
    }

    /// The length of the plan file in bytes.
    pub(crate) fn plan_len(&self) -> u64 {
        self.plan.as_ref().map_or(0, |(file, _)| file.len())
    }
}

impl Profilees {
    /// Adds the first program.
    pub(crate) fn first(
        &mut self,
        binary: &Path,
        shown: OsString,
        planned: Planned<'static, 'static>,
        agent: bool,
    ) -> &'static Profilee {
        let profilee = self.add(binary, binary, shown, planned, agent);
        if let Some(identity) = identity(binary) {
            self.known.insert(identity, Ok(profilee));
        }
        profilee
    }

    fn add(
        &mut self,
        path: &Path,
        binary: &Path,
        shown: OsString,
        planned: Planned<'static, 'static>,
        agent: bool,
    ) -> &'static Profilee {
        let planned: &'static Planned = Box::leak(Box::new(planned));
        let plan = planned.plan.as_ref().filter(|_| agent);
        let profilee = Box::leak(Box::new(Profilee {
            number: self.all.len() as u32,
            binary: binary.to_owned(),
            identity: identity(path),
            copy: OnceLock::new(),
            shown,
            plan: plan.map(|plan| {
                let layout = Layout::new(
                    planned.shape,
                    plan.slot_bytes,
                    plan.counter_bytes(),
                    planned.libraries,
                    planned.measure,
                );
                (planned.plan_file(), layout)
            }),
            planned,
        }));
        self.all.push(profilee);
        profilee
    }

    /// Returns the program that a member of the family executes, or why the agent cannot be put into it. The
    /// program can be read at `path` now, and messages call it `binary`.
    pub(crate) fn executed(
        &mut self,
        path: &Path,
        binary: &Path,
        planner: &Planner,
    ) -> Result<&'static Profilee, String> {
        let identity = identity(path).ok_or("it cannot be read")?;
        if let Some(known) = self.known.get(&identity) {
            return known.clone();
        }
        let subject = planner.subject(path);
        let profilee = match subject.kind.unhookable() {
            None => {
                let planned = planner.plan(subject, binary, true);
                match planned.obstacle.clone() {
                    Some(why) => Err(why),
                    None => {
                        let profilee = self.add(path, binary, binary.into(), planned, true);
                        planner.keep(path, ReadFor::Program, profilee.planned);
                        Ok(profilee)
                    }
                }
            }
            Some(why) => Err(why.to_owned()),
        };
        self.known.insert(identity, profilee.clone());
        profilee
    }

    /// Returns a program by the number of its plan.
    pub(crate) fn get(&self, number: u32) -> Option<&'static Profilee> {
        self.all.get(number as usize).copied()
    }
}

/// Returns the identity of a file, or `None` if it cannot be read.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}
