//! The user's selection of libraries: `--libs`.

use std::str::FromStr;

use anyhow::{Context, Error};
use globset::{Glob, GlobSet, GlobSetBuilder};

/// Which libraries are hooked.
#[derive(Clone, Debug)]
pub(crate) struct Libs {
    /// As the user has typed it.
    typed: String,
    choice: Choice,
}

#[derive(Clone, Debug)]
enum Choice {
    /// All but the runtime libraries of C, C++ and Fortran.
    Auto,
    None,
    All,
    /// Those whose file name matches.
    Matching(GlobSet),
}

/// The names of runtime libraries up to their `.so`: the dynamic linker, glibc's, and those of compilers. What they do is
/// rarely what a profile is about, they are called very often, and parts of them run before and below everything else.
const RUNTIME: [&str; 35] = [
    "ld-linux-x86-64",
    "libBrokenLocale",
    "libanl",
    "libasan",
    "libatomic",
    "libc",
    "libc++",
    "libc++abi",
    "libdl",
    "libgcc_s",
    "libgfortran",
    "libgomp",
    "libhwasan",
    "libitm",
    "liblsan",
    "libm",
    "libmvec",
    "libnsl",
    "libnss_compat",
    "libnss_dns",
    "libnss_files",
    "libomp",
    "libpthread",
    "libquadmath",
    "libresolv",
    "librt",
    "libssp",
    "libstdc++",
    "libthread_db",
    "libtsan",
    "libubsan",
    "libunwind",
    "libutil",
    "libvtv",
    "libmemusage",
];

impl FromStr for Libs {
    type Err = Error;

    fn from_str(typed: &str) -> Result<Libs, Error> {
        let choice = match typed {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "all" => Choice::All,
            globs => {
                let mut set = GlobSetBuilder::new();
                for glob in globs.split(',') {
                    let glob = Glob::new(glob).with_context(|| {
                        format!("'{glob}' is not a pattern (a literal [ or {{ is written \\[ or \\{{)")
                    })?;
                    set.add(glob);
                }
                Choice::Matching(set.build()?)
            }
        };
        Ok(Libs { typed: typed.to_owned(), choice })
    }
}

impl Libs {
    /// No libraries.
    #[cfg(test)]
    pub(crate) fn none() -> Libs {
        Libs { typed: "none".to_owned(), choice: Choice::None }
    }

    /// As the user has typed it.
    pub(crate) fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether any library may be hooked.
    pub(crate) fn wants_any(&self) -> bool {
        !matches!(self.choice, Choice::None)
    }

    /// Whether the user has named libraries, or wants all of them, and not only those that are hooked anyway.
    pub(crate) fn are_named(&self) -> bool {
        matches!(self.choice, Choice::All | Choice::Matching(_))
    }

    /// Whether a library with this file name is hooked.
    pub(crate) fn wants(&self, name: &str) -> bool {
        match &self.choice {
            Choice::None => false,
            Choice::All => true,
            Choice::Matching(set) => set.is_match(name),
            Choice::Auto => !is_runtime(name),
        }
    }
}

/// Whether a file name is that of a runtime library: one of the names, then `.so`, or a version as in `libc-2.31.so`.
pub(crate) fn is_runtime(name: &str) -> bool {
    RUNTIME.iter().any(|runtime| {
        name.strip_prefix(runtime).is_some_and(|rest| {
            let version =
                rest.strip_prefix('-').and_then(|rest| rest.split_once(".so")).map(|(version, _)| version);
            let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            rest == ".so" || rest.starts_with(".so.") || version.is_some_and(is_version)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_libraries_are_known_by_their_names() {
        for name in ["libc.so.6", "libc-2.31.so", "ld-linux-x86-64.so.2", "libstdc++.so.6.0.30", "libm.so.6"]
        {
            assert!(is_runtime(name), "{name}");
        }
        for name in
            ["libcrypto.so.3", "libcap.so.2", "libmagic.so.1", "libm-extra.so", "libc.txt", "libgmp.so"]
        {
            assert!(!is_runtime(name), "{name}");
        }
    }

    #[test]
    fn the_selection_is_as_typed() {
        let wants = |typed: &str, name: &str| typed.parse::<Libs>().expect("a selection").wants(name);
        assert!(wants("auto", "libz.so.1") && !wants("auto", "libc.so.6"));
        assert!(wants("all", "libc.so.6") && !wants("none", "libz.so.1"));
        assert!(wants("libz*,libm.so.*", "libm.so.6") && !wants("libz*,libm.so.*", "libc.so.6"));
        assert!("a[".parse::<Libs>().is_err());
        assert!(!"none".parse::<Libs>().expect("a selection").wants_any());
    }
}
