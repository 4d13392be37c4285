//! Tests of the comparison itself: a perfect profile passes, and each kind of mistake is detected.

use gprofinject_tests::tool::Hooks;
use gprofinject_skip as skip;
use gprofinject_tests::{build, callgrind, check, directives::Test, elf::Program, expect, flags, gprofdata, normalise, tool};

gprofinject_tests::trials! {
    together:
        mistakes_are_seen,
        mistakes_are_seen_beside_functions_that_are_left_alone,
        included_files_have_their_say;
}

fn mistakes_are_seen() {
    if !callgrind::available() {
        return skip::skipped("mistakes_are_seen", "no valgrind");
    }
    let folder = tempfile::tempdir().unwrap();
    let test = Test::read(&tool::folder().join("programs/qsort.c")).unwrap();
    let path = build::build(&test, flags::flag_set("O2")).unwrap();
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

/// The same for the comparison that leaves functions out.
fn mistakes_are_seen_beside_functions_that_are_left_alone() {
    let test = Test::read(&tool::folder().join("programs/direct.c")).unwrap();
    let path = build::build(&test, flags::flag_set("O2")).unwrap();
    let program = Program::read(&path).unwrap();
    let arcs = test.arcs(Hooks::Both);
    let (perfect, differences) = expect::as_profile(&arcs, &program);
    assert!(differences.is_empty() && arcs.len() > 1, "{differences:?}");
    let at = |name: &str| program.named(name).unwrap().address;
    let (main, a, b, c) = (at("main"), at("a"), at("b"), at("c"));
    let equal = |refused: &[u64], change: &dyn Fn(&mut gprofdata::GmonOut)| {
        let mut profile = gprofdata::GmonOut { arcs: perfect.arcs.clone(), ..Default::default() };
        change(&mut profile);
        let refused = refused.iter().copied().collect();
        expect::compare_without(&refused, &arcs, false, &profile, &program).is_empty()
    };
    assert!(equal(&[], &|_| {}));
    assert!(!equal(&[], &|p| *p.arcs.get_mut(&(a, b)).unwrap() += 1), "one call too many");
    assert!(!equal(&[], &|p| *p.arcs.get_mut(&(a, b)).unwrap() -= 1), "one call lost");
    assert!(equal(&[b], &|p| p.arcs.retain(|(_, callee), _| *callee != b)));
    assert!(!equal(&[b], &|_| {}), "calls of a function that was left alone");
    // Calls by a function that is not hooked count as its caller's.
    let without_a = |p: &mut gprofdata::GmonOut| {
        p.arcs = [((main, b), 30), ((main, c), 4), ((at("_start"), main), 1)].into_iter().collect()
    };
    assert!(equal(&[a], &without_a));
    assert!(!equal(&[], &without_a));
    assert!(
        !equal(&[a], &|p| {
            without_a(p);
            p.arcs.remove(&(main, b));
        }),
        "calls lost"
    );
    let few = |p: &mut gprofdata::GmonOut| {
        without_a(p);
        p.arcs.remove(&(main, c));
        p.arcs.insert((b, c), 4);
    };
    assert!(!equal(&[a], &few), "the caller's own call is another's");
}

/// Two programs that differ only in flags share a body and its directives.
fn included_files_have_their_say() {
    let program = |name: &str| Test::read(&tool::folder().join("programs").join(name)).unwrap();
    let (one, other) = (program("exc-static.cc"), program("exc-static-libgcc.cc"));
    assert!(one.others_allowed && one.callgrind && one.flags != other.flags && one.not != other.not);
    assert!(one.arcs(Hooks::Both).iter().any(|arc| arc.callee == "compare" && arc.caller == "attempt"));
    for hooks in Hooks::ALL {
        assert_eq!(one.arcs(hooks), other.arcs(hooks));
    }
}
