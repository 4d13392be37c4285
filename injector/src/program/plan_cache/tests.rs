//! Tests of what determines a key, and of where the cache is.

use std::fs;
use std::path::Path;

use gprofinject_image::Function;
use gprofinject_plan::{Engine, Hooks, Measured, Options, Role};

use crate::options::{CountArg, EngineArg, HooksArg};
use crate::os::say::Level;
use crate::program::libs::Libs;
use crate::program::plan_cache::entry::Source;
use crate::program::plan_cache::*;
use crate::program::planned::Planned;
use crate::program::planner::{self, Planner};
use crate::program::subject::Subject;

fn voice() -> Voice {
    Voice(Level::Quiet)
}

fn cache_in(path: &Path) -> PlanCache {
    PlanCache::at(Some(path.to_owned()), None, voice())
}

/// Returns a program that is always there: this test program.
fn own_subject() -> &'static Subject<'static> {
    planner::subject(&std::env::current_exe().expect("its path"), true)
}

#[test]
fn the_folder_is_where_the_specification_says() {
    let place_by = |variables: &[(&str, &str)]| {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        place(|name| find(name).map(|(_, value)| value.into())).map(|path| path.display().to_string())
    };
    assert_eq!(place_by(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/gprofinject"));
    assert_eq!(place_by(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/gprofinject"));
    for ignored in ["", "relative", "./x"] {
        let variables = [("HOME", "/h"), ("XDG_CACHE_HOME", ignored)];
        assert_eq!(place_by(&variables).as_deref(), Some("/h/.cache/gprofinject"));
    }
    assert_eq!(place_by(&[]), None);
    assert_eq!(place_by(&[("HOME", "")]), None);
}

#[test]
fn whatever_a_plan_follows_from_makes_another_key() {
    let subject = own_subject();
    let image = subject.image().expect("a program");
    let all: &(dyn Fn(&Function) -> bool + Sync) = &|_| true;
    let but_one: &(dyn Fn(&Function) -> bool + Sync) = &|f| f.address != image.functions[9].address;
    let options = |hooks, engine, insist, selected| Options {
        hooks,
        engine,
        selected,
        min_size: 0,
        insist,
        shadow_stack: false,
        counted: None,
        clock: false,
        outermost: false,
        role: Role::Program,
        measured: Measured::None,
        told: None,
        arena: None,
        words: -128,
    };
    let key = |subject: &Subject, options: &Options| {
        Question { subject, image, options, selects: None, hookless: false }.key()
    };
    let (both, builtin) = (Hooks::Both, Engine::Builtin);
    let mut keys = vec![
        key(subject, &options(both, builtin, false, all)),
        key(subject, &options(Hooks::Entry, builtin, false, all)),
        key(subject, &options(both, Engine::Frida, false, all)),
        key(subject, &options(both, Engine::FridaOrBuiltin, false, all)),
        key(subject, &options(both, builtin, true, all)),
        key(subject, &options(both, builtin, false, but_one)),
    ];
    let plain = options(both, builtin, false, all);
    keys.push(key(subject, &Options { role: Role::Standalone, ..options(both, builtin, false, all) }));
    keys.push(key(subject, &Options { measured: Measured::All, ..options(both, builtin, false, all) }));
    keys.push(key(subject, &Options { arena: Some(0x1000), ..options(both, builtin, false, all) }));
    keys.push(key(subject, &Options { words: -192, ..options(both, builtin, false, all) }));
    // Another program, which differs by one byte.
    let path = tempfile::NamedTempFile::new().expect("a file");
    let mut bytes = subject.bytes.to_vec();
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(path.path(), bytes).expect("written");
    keys.push(key(planner::subject(path.path(), true), &plain));
    // Whether calls are removed from the code may depend on the environment.
    let mut without_calls = Image::read(subject.bytes).expect("a program");
    without_calls.facts.hooks_removed = true;
    let question =
        Question { subject, image: &without_calls, options: &plain, selects: None, hookless: false };
    keys.push(question.key());
    keys.push(Question { subject, image, options: &plain, selects: None, hookless: true }.key());
    assert!(keys.iter().all(Option::is_some));
    for (n, key) in keys.iter().enumerate() {
        assert!(!keys[..n].contains(key), "key {n}");
    }
    assert_eq!(keys[0], key(own_subject(), &plain));

    let counted: &dyn Fn(&Function) -> bool = &|_| true;
    assert_eq!(key(subject, &Options { counted: Some(counted), ..plain }), None);
    assert_eq!(
        key(planner::subject(path.path(), false), &options(both, builtin, false, all)),
        None,
        "not hashed"
    );
}

#[test]
fn a_plan_is_kept_and_found() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("gprofinject");
    let filters = Filters::new(&[], &[], 0).expect("none");
    let subject = own_subject();
    let make = |cache: &PlanCache, hooks| {
        Planner {
            hooks: Some(hooks),
            engine: EngineArg::Builtin,
            measure: None,
            args: None,
            filters: &filters,
            libs: &Libs::none(),
            running: false,
            shadow_stacks: false,
            arena: None,
            cache,
        }
        .plan(subject, Path::new("program"), true)
    };
    let cache = cache_in(&path);
    let first: &'static Planned = Box::leak(Box::new(make(&cache, HooksArg::Both)));
    assert!(!first.is_cached && first.key.is_some() && !path.exists());
    let Subject { bytes, version, .. } = *subject;
    cache.add(
        first.key.expect("new"),
        Source::Plan { plan: first.plan.as_ref().expect("planned"), bytes, version },
    );
    drop(cache);
    assert_eq!(fs::read_dir(&path).expect("made").count(), 1);

    let cache = cache_in(&path);
    let second = make(&cache, HooksArg::Both);
    assert!(second.is_cached && second.is_kept && second.file.is_some());
    let file = |planned: &Planned| planned.plan.as_ref().map(|plan| plan.encode(&[]).concat());
    assert!(file(first) == file(&second));
    let found = [HooksArg::Entry, HooksArg::None].map(|hooks| make(&cache, hooks).is_cached);
    assert_eq!(found, [false, false]);
    let off = PlanCache::new(false, voice());
    assert!(!make(&off, HooksArg::Both).is_cached && make(&off, HooksArg::Both).key.is_none());
    let counting =
        Filters::new(&[], &[], 0).and_then(|f| f.counting(Some(CountArg::Blocks), &[])).expect("none");
    assert!(cache.takes(&filters) && !cache.takes(&counting) && !off.takes(&filters));
}

#[test]
fn sizes_have_units() {
    let sizes = ["0", "4096", "3K", "500M", "2G", "1T"].map(bytes);
    assert_eq!(sizes, [0, 4096, 3 << 10, 500 << 20, 2 << 30, 1 << 40].map(Some));
    for none in ["", "G", "-1", "1.5G", "2 G", "2g", "16777216T"] {
        assert_eq!(bytes(none), None, "{none}");
    }
}
