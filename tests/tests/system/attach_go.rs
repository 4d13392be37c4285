//! Attaching to Go programs that already run, and leaving them, again and again, under load.

use std::process::Command;
use std::time::Duration;

use gprofinject_tests::attached::{Subject, pauses};
use gprofinject_tests::place::Place;

use crate::attach::cycles;
use crate::go::{build, has_go};

gprofinject_tests::trials! {
    busy:
        go_programs_under_load;
}

/// Exactly the calls between attaching and leaving are counted, and those of busy goroutines agree with the program's own
/// counters, except for calls in progress. The program finds any wrong result by itself.
fn go_programs_under_load() {
    if !has_go("attach_go::go_programs_under_load") {
        return;
    }
    // With the network, the default is a program that glibc's dynamic linker loads.
    let builds: [(&str, &[&str]); 3] = [
        ("cgo", &[]),
        ("static", &["-tags=netgo,osusergo"]),
        ("pie", &["-buildmode=pie"]),
    ];
    for (name, args) in builds {
        let place = Place::new();
        build(&place, "served.go", name, args).unwrap();
        let mut command = Command::new(place.path(name));
        command.arg("ccgglmmps").current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
        let mut subject = Subject::start(place, command);
        let before = subject.code();
        for n in 0..cycles(5) {
            let options: &[&str] = if n % 2 == 0 { &["-v"] } else { &["-v", "--hooks=entry", "--libs=none"] };
            let first = subject.counters();
            let attached = subject.attached(options);
            let second = subject.counters();
            subject.step(1000);
            std::thread::sleep(Duration::from_millis(20));
            let third = subject.counters();
            let (status, said) = attached.end("-INT");
            let fourth = subject.counters();
            assert_eq!(status, Some(0), "{name}, the {n}th time: {said}");
            assert_eq!(subject.calls("main.step"), 1000, "{name}: {said}");
            // Of each of a few hundred goroutines, a call may be in progress.
            for (function, of) in [("main.outer", 0), ("main.inner", 1)] {
                let [first, second, third, fourth] = [first, second, third, fourth].map(|c| [c.outer, c.inner][of]);
                let calls = subject.calls(function);
                let (least, most) = ((third - second).saturating_sub(300), fourth - first + 300);
                assert!((least..=most).contains(&calls), "{name} {function}: {calls}, not {least}..{most}; {said}");
            }
            assert_eq!(pauses(&said).len(), 2, "{said}");
            assert!(subject.is_clean(), "{name}, the {n}th time: {said}");
        }
        assert_eq!(subject.changed(&before), None, "{name}");
        subject.finish();
    }
}
