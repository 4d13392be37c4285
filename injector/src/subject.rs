//! What kind of program it is, and so what can be done with it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gprofinject_plan::image::Image;

use crate::elf::{self, Header};
use crate::sys::{self, Ids, Mapped};

/// The program's file in memory, or why there is none.
pub(crate) struct Binary {
    bytes: Result<Mapped, String>,
    /// Why the kernel will change its ids, if it will.
    privileges: Option<&'static str>,
}

/// What is known of the program.
#[derive(Debug, Default)]
pub(crate) struct Subject<'d> {
    pub(crate) image: Option<Image<'d>>,
    /// Executable segments; none: unknown.
    pub(crate) code: Vec<elf::Segment>,
    /// Why nothing can be hooked.
    pub(crate) unhookable: Option<String>,
    /// Why nothing can be sampled either.
    pub(crate) blind: bool,
}

impl Binary {
    pub(crate) fn open(path: &Path) -> Binary {
        let bytes = File::open(path).and_then(|file| Mapped::new(&file));
        Binary {
            bytes: bytes.map_err(|error| format!("it cannot be read ({})", sys::reason(&error))),
            privileges: privileges(path, sys::ids()),
        }
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.len())
    }

    pub(crate) fn examine(&self) -> Subject<'_> {
        match (&self.bytes, self.privileges) {
            (Err(why), _) => Subject::blind(why.clone()),
            (Ok(_), Some(why)) => Subject::blind(why.to_owned()),
            (Ok(bytes), None) => examine(bytes),
        }
    }
}

impl Subject<'_> {
    /// The separate file with its symbols, where they are not in the program itself.
    pub(crate) fn debug_file(&self) -> Option<PathBuf> {
        let facts = &self.image.as_ref()?.facts;
        let (first, rest) = facts.build_id.as_ref().filter(|_| !facts.has_symtab)?.split_first()?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
        path.exists().then_some(path)
    }

    /// Can the agent library be put into it?
    pub(crate) fn takes_agent(&self) -> bool {
        self.image.is_some() && self.unhookable.is_none()
    }

    fn blind(why: String) -> Subject<'static> {
        Subject { unhookable: Some(why), blind: true, ..Subject::default() }
    }
}

fn examine(bytes: &[u8]) -> Subject<'_> {
    let program = match elf::read(bytes) {
        Header::Ours(program) => program,
        Header::Foreign(what) => return Subject::blind(format!("it is {what}")),
        Header::Broken(why) => return Subject::blind(why.to_owned()),
        Header::NotElf => return Subject::blind("it is not an ELF program".to_owned()),
    };
    let (image, fault) = match Image::read(bytes) {
        Ok(image) => (Some(image), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let unhookable = match &program.interpreter {
        None => Some("it is statically linked, and no library can be put into it".to_owned()),
        Some(loader) if loader.contains("ld-musl") => {
            Some("it uses musl (the agent needs glibc's dynamic linker)".to_owned())
        }
        Some(_) if image.as_ref().is_some_and(|image| image.facts.address_sanitizer) => {
            Some("AddressSanitizer wants to be its first library (link with -static-libasan)".to_owned())
        }
        Some(_) => fault,
    };
    Subject { image, code: program.code, unhookable, blind: false }
}

/// The kernel makes the dynamic linker ignore LD_PRELOAD (AT_SECURE) and ends all perf events where an
/// exec changes ids or capabilities.
fn privileges(path: &Path, ids: Ids) -> Option<&'static str> {
    let metadata = fs::metadata(path).ok()?;
    if ids.no_new_privileges {
        return None;
    }
    let mode = metadata.mode();
    if mode & libc::S_ISUID != 0 && metadata.uid() != ids.euid {
        return Some("it is a set-user-ID program; profile it as its owner");
    }
    let set_group = libc::S_ISGID | libc::S_IXGRP;
    if mode & set_group == set_group && metadata.gid() != ids.egid {
        return Some("it is a set-group-ID program; profile it as its group");
    }
    if ids.uid != 0 && sys::has_attribute(path, c"security.capability") {
        return Some("it has file capabilities; profile it as root, or a copy without them");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_user_id_matters_only_where_it_changes_something() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p");
        fs::write(&path, "x").expect("written");
        let own = sys::ids();
        let other =
            Ids { euid: own.euid + 1, egid: own.egid + 1, uid: own.uid + 1, no_new_privileges: false };
        let own = Ids { no_new_privileges: false, ..own };
        let set = |mode| {
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("mode");
        };
        set(0o4755);
        assert!(privileges(&path, own).is_none());
        assert!(privileges(&path, other).is_some());
        assert!(privileges(&path, Ids { no_new_privileges: true, ..other }).is_none());
        set(0o755);
        assert!(privileges(&path, other).is_none());
    }

    #[test]
    fn what_is_no_program_is_said() {
        for bytes in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF", &[0; 100]] {
            let subject = examine(bytes);
            assert!(subject.blind && subject.unhookable.is_some());
        }
    }
}
