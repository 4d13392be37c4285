//! Takes what gprofinject has added out of the environment, so that the program finds there what the user has put there, in the
//! same order, and so does whoever reads /proc/PID/environ.
#![allow(unsafe_code, reason = "the environment is raw memory")]

use crate::os::initial::{AT_BASE, Start};
use crate::os::lookup;
use crate::os::place::Place;
use crate::os::stat;
use gprofinject_abi::{AGENT_FILE, PRELOAD_VARIABLE, RUN_VARIABLE};

/// Removes the variables that gprofinject has added. Returns the place of the process's files, or `None` if gprofinject has
/// added none: the library was loaded in another way.
pub(crate) fn take(start: &Start) -> Option<Place> {
    take_with(start, own_name(start).unwrap_or_default())
}

/// Does what [`take`] does if the dynamic linker has loaded the library by this name, which is empty if it is not known: the
/// dynamic linker is the program.
fn take_with(start: &Start, own: &[u8]) -> Option<Place> {
    let run = start.last(RUN_VARIABLE)?;
    let preload = start.last(PRELOAD_VARIABLE)?;
    // SAFETY: both are elements of the environment, whose strings contain their names and "=".
    let (place, libraries) = unsafe { (run.value(RUN_VARIABLE), preload.value(PRELOAD_VARIABLE)) };
    let place = Place::new(place);
    let is_in_folder = |library: &[u8]| {
        let folder = place.as_ref().map_or(&b""[..], |place| place.folder());
        let name = library.strip_prefix(folder).and_then(|rest| rest.strip_prefix(b"/"));
        name == Some(AGENT_FILE.as_bytes())
    };
    let is_own = |library: &[u8]| !own.is_empty() && library == own || is_in_folder(library);
    let at = libraries.split(is_separator).position(is_own)?;
    let mut first = run.text();
    // What stands before the agent's library was put there after gprofinject had added it, by an emulator that executes the
    // program in its own way (valgrind). If the user has no value of their own, that part stays.
    if at > 0 && start.is_repeated(PRELOAD_VARIABLE) == Some(false) {
        let before: usize = libraries.split(is_separator).take(at).map(|library| library.len() + 1).sum();
        // SAFETY: the string is the process's own, writable memory, and no code of the program runs.
        unsafe { preload.cut(PRELOAD_VARIABLE.len() + before) };
    } else {
        first = first.min(preload.text());
        // SAFETY: as above.
        unsafe { start.remove(preload) };
    }
    // The removal of one element moves those behind it.
    if let Some(run) = start.last(RUN_VARIABLE) {
        // SAFETY: as above.
        unsafe { start.remove(run) };
    }
    // The kernel has stored the strings in the order of the array, so nothing is left behind those.
    if start.texts_end().is_none_or(|end| end <= first) {
        stat::end_environment(first);
    }
    place
}

/// Whether the dynamic linker ends a name in LD_PRELOAD there.
fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// Returns the name by which the dynamic linker has loaded the agent's library.
fn own_name(start: &Start) -> Option<&'static [u8]> {
    let name = lookup::own_name(start.auxiliary(AT_BASE))?;
    // SAFETY: the dynamic linker's names end with a NUL, and it keeps that of a preloaded library as long as the process lives.
    Some(unsafe { core::ffi::CStr::from_ptr(name.cast()) }.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    const OWN: &str = "/run/f/libgprofinject.so";

    /// Makes a stack as the kernel leaves it, with these variables, and takes the agent's own ones out of it. Returns the name
    /// of the process's files, and the variables that are left.
    fn taken(variables: &[&str]) -> (Option<String>, Vec<String>) {
        let mut strings: Vec<Vec<u8>> =
            variables.iter().map(|v| CString::new(*v).expect("no zero byte").into_bytes_with_nul()).collect();
        let mut stack: Vec<u64> = vec![0, 0];
        stack.extend(strings.iter_mut().map(|string| string.as_mut_ptr() as u64));
        stack.extend([0, 0, 0]);
        // SAFETY: that is the layout of a stack without arguments and auxiliary values.
        let start = unsafe { Start::of(stack.as_mut_ptr()) };
        let place = take_with(&start, OWN.as_bytes());
        let name = place.map(|place| String::from_utf8_lossy(place.name()).into_owned());
        let left = stack[2..].iter().take_while(|&&address| address != 0);
        // SAFETY: these are strings of the vector above, which end with a NUL.
        let left = left.map(|&address| unsafe { core::ffi::CStr::from_ptr(address as *const _) });
        (name, left.map(|text| text.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn the_users_own_variables_stay() {
        let ours = "LD_PRELOAD=/run/f/libgprofinject.so";
        assert_eq!(taken(&["A=1", ours, "GPROFINJECT_RUN=/run/f/0"]), (Some("0".into()), vec!["A=1".into()]));
        let with_theirs = format!("{ours}:x.so");
        assert_eq!(
            taken(&["GPROFINJECT_RUN=x", "LD_PRELOAD=x.so", "B=", &with_theirs, "GPROFINJECT_RUN=/run/f/x7"]),
            (Some("x7".into()), vec!["GPROFINJECT_RUN=x".into(), "LD_PRELOAD=x.so".into(), "B=".into()])
        );
        assert_eq!(taken(&[ours, "GPROFINJECT_RUN=/run/f/0"]), (Some("0".into()), vec![]));
    }

    #[test]
    fn libraries_that_others_have_put_in_front_stay() {
        let prefixed = "LD_PRELOAD=/v/core.so:/v/tool.so:/run/f/libgprofinject.so";
        assert_eq!(
            taken(&[prefixed, "GPROFINJECT_RUN=/run/f/0"]),
            (Some("0".into()), vec!["LD_PRELOAD=/v/core.so:/v/tool.so".into()])
        );
        let theirs = "LD_PRELOAD=/v/core.so:x.so";
        assert_eq!(
            taken(&[theirs, &format!("{prefixed}:x.so"), "GPROFINJECT_RUN=/run/f/0"]),
            (Some("0".into()), vec![theirs.into()])
        );
    }

    #[test]
    fn without_the_library_nothing_is_ours() {
        for variables in [
            &["GPROFINJECT_RUN=x"][..],
            &["LD_PRELOAD=x.so", "GPROFINJECT_RUN=/run/f/0"],
            &["LD_PRELOAD=/run/f/libgprofinject.so"],
        ] {
            let left = variables.iter().map(|&variable| variable.to_owned()).collect();
            assert_eq!(taken(variables), (None, left));
        }
    }
}
