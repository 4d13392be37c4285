//! Whether another user could read a file: whoever has made a program chose the names of the files in its debug information, and
//! must not have this user show what they cannot read themselves.
//!
//! A path enters; the open file leaves, or a refusal. All components are opened by descriptor, without symbolic links, and each
//! is checked by what the descriptor says.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};

/// The bits of a mode that permit to read a file, and to pass through a folder.
const READ: u32 = 4;
const SEARCH: u32 = 1;

/// The other users who have made what a report is about, with the groups of each.
#[derive(Debug, Default)]
pub struct Authors(Vec<Author>);

#[derive(Debug)]
struct Author {
    uid: u32,
    groups: BTreeSet<u32>,
}

impl Authors {
    /// Returns the authors among the owners of files: all but root, who may read everything, and this user.
    pub fn among(owners: impl IntoIterator<Item = u32>) -> Authors {
        let own = rustix::process::geteuid().as_raw();
        let others: BTreeSet<u32> = owners.into_iter().filter(|&uid| uid != 0 && uid != own).collect();
        Authors(others.into_iter().map(|uid| Author { uid, groups: groups_of(uid) }).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Opens a regular file that all of these users could read.
    ///
    /// # Errors
    /// It cannot be opened, or one of them could not read it (`PermissionDenied`).
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let last = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if self.is_empty() {
            return regular(openat(CWD, path, last, Mode::empty())?.into());
        }
        // From here on, the path has no symbolic links, unless somebody exchanges its components meanwhile.
        let path = path.canonicalize()?;
        let mut names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let Some(name) = names.next_back() else { return Err(refused()) };
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = openat(CWD, "/", folder, Mode::empty())?;
        self.check(&fstat(&at)?, SEARCH)?;
        for name in names {
            at = openat(&at, name, folder, Mode::empty())?;
            self.check(&fstat(&at)?, SEARCH)?;
        }
        let file = regular(openat(&at, name, last | OFlags::NOFOLLOW, Mode::empty())?.into())?;
        self.check(&fstat(&file)?, READ)?;
        Ok(file)
    }

    fn check(&self, stat: &Stat, bit: u32) -> io::Result<()> {
        match self.0.iter().all(|author| author.may(stat, bit)) {
            true => Ok(()),
            false => Err(refused()),
        }
    }
}

impl Author {
    /// Whether the mode permits it to this user. As for the kernel, the first of owner, group and others that the user is
    /// decides.
    fn may(&self, stat: &Stat, bit: u32) -> bool {
        let shift = match () {
            () if stat.st_uid == self.uid => 6,
            () if self.groups.contains(&stat.st_gid) => 3,
            () => 0,
        };
        stat.st_mode >> shift & bit != 0
    }
}

fn refused() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

fn regular(file: File) -> io::Result<File> {
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Returns the groups of a user that the machine's own files name. A user whom they do not name has none, and then only files
/// for everybody count.
fn groups_of(uid: u32) -> BTreeSet<u32> {
    memberships(&text("/etc/passwd"), &text("/etc/group"), uid)
}

fn text(path: &str) -> String {
    /// The length in bytes above which a list is not read further.
    const LONGEST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    if read.is_ok() { String::from_utf8_lossy(&bytes).into_owned() } else { String::new() }
}

/// Returns the groups of a user by the contents of passwd(5) and group(5).
fn memberships(passwd: &str, group: &str, uid: u32) -> BTreeSet<u32> {
    let (mut names, mut groups) = (BTreeSet::new(), BTreeSet::new());
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let (name, id, gid) = (fields.next(), fields.nth(1), fields.next());
        if id.and_then(|id| id.parse().ok()) == Some(uid) {
            names.extend(name);
            groups.extend(gid.and_then(|gid| gid.parse::<u32>().ok()));
        }
    }
    for line in group.lines() {
        let mut fields = line.split(':').skip(2);
        let (gid, members) =
            (fields.next().and_then(|gid| gid.parse::<u32>().ok()), fields.next().unwrap_or_default());
        if members.split(',').any(|member| names.contains(member)) {
            groups.extend(gid);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn groups_by_the_files() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\na:x:7:70::/:\nb:x:8:80::/:\nbad\n";
        let group = "g:x:5:b,a\nh:x:6:b\nstaff:x:9:aa\nbad:x\n";
        assert_eq!(memberships(passwd, group, 7), BTreeSet::from([5, 70]));
        assert_eq!(memberships(passwd, group, 9), BTreeSet::new());
    }

    #[test]
    fn what_another_user_could_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mode = |name: &str, mode| {
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode("", 0o755);
        std::fs::create_dir(path("d")).expect("a folder");
        for name in ["open", "private", "d/inside"] {
            std::fs::write(path(name), name).expect("a file");
        }
        symlink(path("private"), path("link")).expect("a link");
        symlink(path("open"), path("other")).expect("a link");
        mode("open", 0o644);
        mode("private", 0o600);
        mode("d/inside", 0o644);
        mode("d", 0o700);
        let stranger = Authors(vec![Author { uid: 54_321, groups: BTreeSet::new() }]);
        let opens = |authors: &Authors, name: &str| authors.open(&path(name)).is_ok();
        for (name, expected) in [
            ("open", true),
            ("private", false),
            ("d/inside", false),
            ("link", false),
            ("other", true),
            ("d", false),
        ] {
            assert_eq!(opens(&stranger, name), expected, "{name}");
            assert_eq!(opens(&Authors::default(), name), name != "d", "{name}");
        }
        mode("d", 0o711);
        assert!(opens(&stranger, "d/inside"));
        assert!(Authors::among([0, rustix::process::geteuid().as_raw()]).is_empty());
    }
}
