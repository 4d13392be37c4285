//! The comparison compares: a perfect profile passes, each kind of mistake is seen.

#![allow(clippy::unwrap_used)]

use gprofinject_tests::tool::Hooks;
use gprofinject_tests::{
    build, callgrind, check, directives::Test, elf::Program, gprofdata, normalise, skip, tool,
};

#[test]
fn mistakes_are_seen() {
    if !callgrind::available() {
        return skip::skipped("mistakes_are_seen", "no valgrind");
    }
    let folder = tempfile::tempdir().unwrap();
    let test = Test::read(&tool::folder().join("programs/qsort.c")).unwrap();
    let path = build::build(&test, build::flag_set("O2"), folder.path()).unwrap();
    let program = Program::read(&path).unwrap();
    let (counted, _) = callgrind::run(&path, &[], None).unwrap();
    let object = counted.object(&path).unwrap();
    let expected = normalise::normalise(&counted, object, &program, Hooks::Both).unwrap();

    let file = folder.path().join("gmon.out");
    gprofdata::write_arcs(&file, &expected.as_profile().arcs).unwrap();
    let perfect = gprofdata::read(&file).unwrap();
    let report = check::compare(&expected, &perfect, &program).unwrap();
    assert!(report.is_equal() && report.arcs >= 5 && report.sites >= 2, "{report}");

    let key = |name: &str| {
        let callee = program.named(name).unwrap().address;
        *perfect.arcs.keys().find(|(_, c)| *c == callee).unwrap()
    };
    let (site, callee) = key("sort_two");
    let differs = |change: &dyn Fn(&mut gprofdata::GmonOut)| {
        let mut profile = gprofdata::GmonOut { arcs: perfect.arcs.clone(), ..Default::default() };
        change(&mut profile);
        !check::compare(&expected, &profile, &program).unwrap().is_equal()
    };
    assert!(differs(&|p| *p.arcs.get_mut(&(site, callee)).unwrap() += 1), "one call too many");
    assert!(differs(&|p| *p.arcs.get_mut(&(site, callee)).unwrap() -= 1), "one call lost");
    assert!(differs(&|p| p.arcs.retain(|arc, _| *arc != key("compare"))), "an arc lost that libc made");
    assert!(differs(&|p| p.arcs.extend([((0, callee), 1)])), "an address in no function");
    assert!(differs(&|p| p.arcs.extend([((site, callee + 1), 1)])), "a callee that is no entry");
    let moved = |p: &mut gprofdata::GmonOut| {
        let count = p.arcs.remove(&(site, callee)).unwrap();
        p.arcs.insert((site + 1, callee), count);
    };
    assert!(differs(&moved), "an address behind the call instruction");
}

/// Two programs that differ in flags share a body and what it says of itself.
#[test]
fn included_files_have_their_say() {
    let program = |name: &str| Test::read(&tool::folder().join("programs").join(name)).unwrap();
    let (one, other) = (program("exc-static.cc"), program("exc-static-libgcc.cc"));
    assert!(one.others_allowed && one.callgrind && one.flags != other.flags && one.not != other.not);
    assert!(one.arcs(Hooks::Both).iter().any(|arc| arc.callee == "compare" && arc.caller == "attempt"));
    for hooks in Hooks::ALL {
        assert_eq!(one.arcs(hooks), other.arcs(hooks));
    }
}
