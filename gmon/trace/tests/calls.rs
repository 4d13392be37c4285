//! From events to calls: the expected steps are written by hand.

mod support;

use gmon_trace::{Choice, Chunk, Event, Open, OpenKind, State};
use support::*;

/// Compares the steps of events of one thread.
fn assert_steps(given: &[Event], expected: &[&str]) {
    let trace = trace(&[process(0, 0), functions(1..9), events(1, given)]);
    assert_eq!(trace.damage, []);
    assert_eq!(steps(&trace, &Choice::default()), expected);
}

#[test]
fn nested_calls() {
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            enter(20, 2),
            enter(30, 3),
            exit(35, 3),
            enter(40, 3),
            exit(50, 3),
            exit(60, 2),
            exit(100, 1),
        ],
        &[
            "7 10 1 {",
            "7 20   2 {",
            "7 30     3; 5/5",
            "7 40     3; 10/10",
            "7 60   } 2 40/25",
            "7 100 } 1 90/50",
        ],
    );
}

#[test]
fn jumps_marks_and_calls_that_are_left() {
    assert_steps(
        &[
            thread(7),
            enter(10, 1),
            Event::Mark { time: 12, function: 4 },
            jump(20, 2),
            enter(22, 3),
            left(30, 3),
            exit(40, 2),
            exit(40, 1),
        ],
        &[
            "7 10 1 {",
            "7 12   4 mark",
            "7 20   2 { jump",
            "7 22     3 left; 8/8",
            "7 40   } 2 20/12",
            "7 40 } 1 30/10",
        ],
    );
}

/// What the agent takes is in no call.
#[test]
fn pauses() {
    assert_steps(
        &[thread(7), enter(10, 1), pause(4), enter(20, 2), pause(3), exit(30, 2), pause(100), exit(140, 1)],
        &["7 10 1 {", "7 20   2; 7/7", "7 140 } 1 23/16"],
    );
}

/// The end of a call may be written late, so that the pause for that comes before the end of the call that has jumped to it.
#[test]
fn pauses_between_ends() {
    assert_steps(
        &[
            thread(7),
            enter(10, 1),
            enter(12, 2),
            jump(15, 3),
            exit(20, 3),
            pause(4),
            exit(20, 2),
            exit(30, 1),
        ],
        &["7 10 1 {", "7 12   2 {", "7 15     3 jump; 5/5", "7 20   } 2 8/3", "7 30 } 1 16/8"],
    );
}

/// The values may come after a pause, and belong to the event before.
#[test]
fn arguments_and_results() {
    let data = |byte: u8| Event::Data { bytes: vec![byte] };
    assert_steps(
        &[
            data(9),
            enter(10, 1),
            pause(1),
            data(1),
            data(8),
            enter(20, 2),
            data(2),
            exit(30, 2),
            data(3),
            exit(40, 1),
            data(4),
        ],
        &["0 10 1 { [1]", "0 20   2 [2]; 10/10 [3]", "0 40 } 1 29/19 [4]"],
    );
}

/// While a coroutine runs, the calls of the thread's own stack stand.
#[test]
fn stacks_of_coroutines() {
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            enter(20, 2),
            chain(30, 50),
            enter(31, 3),
            enter(35, 4),
            chain(40, 40),
            exit(45, 2),
            chain(50, 50),
            exit(56, 4),
            exit(60, 3),
            chain(60, 40),
            exit(70, 1),
        ],
        &[
            "7 10 1 {",
            "7 20   2 {",
            "7 30 stack 50",
            "7 31 3 {",
            "7 35   4 {",
            "7 40 stack 40",
            "7 45   } 2 15/15",
            "7 50 stack 50",
            "7 56   } 4 11/11",
            "7 60 } 3 19/8",
            "7 60 stack 40",
            "7 70 } 1 40/25",
        ],
    );
}

/// A buffer is used by one thread after the other.
#[test]
fn threads_one_after_the_other() {
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            exit(20, 1),
            thread(8),
            chain(30, 40),
            enter(30, 1),
            exit(50, 1),
        ],
        &["7 10 1; 10/10", "8 30 1; 20/20"],
    );
}

#[test]
fn inherited_calls() {
    let inherited = |time, function| Event::Inherited { time, function };
    assert_steps(
        &[thread(7), inherited(10, 1), inherited(10, 2), enter(12, 3), exit(13, 3), exit(20, 2), left(30, 1)],
        &[
            "7 10 1 { inherited",
            "7 10   2 { inherited",
            "7 12     3; 1/1",
            "7 20   } 2 10/9",
            "7 30 } 1 left 20/10",
        ],
    );
}

/// Calls that are told of after a loss go on. The others have ended, when is unknown.
#[test]
fn lost_events() {
    let open = |time, function| Event::Open { time, function };
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            enter(20, 2),
            enter(30, 3),
            Event::Lost { count: 5 },
            chain(50, 40),
            open(10, 1),
            open(44, 2),
            enter(60, 3),
            exit(61, 3),
            exit(70, 2),
            exit(80, 1),
        ],
        &[
            "7 10 1 {",
            "7 20   2 {",
            "7 30     3 {",
            "7 30 lost 5",
            // They are known to have ended when the next event says what is open instead.
            "7 50     } 3 unknown 20/20",
            "7 50   } 2 unknown 30/10",
            "7 50   2 { since 44",
            "7 60     3; 1/1",
            "7 70   } 2 20/19",
            "7 80 } 1 70/20",
        ],
    );
}

/// The agent adds all pauses since a call's beginning to the time of which it tells, and some of them may be lost.
#[test]
fn lost_events_and_pauses() {
    let open = |time, function| Event::Open { time, function };
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            pause(3),
            enter(20, 2),
            Event::Lost { count: 5 },
            chain(60, 40),
            // Pauses of 8 are lost.
            open(21, 1),
            open(28, 2),
            exit(70, 2),
            exit(80, 1),
        ],
        &["7 10 1 {", "7 20   2 {", "7 20 lost 5", "7 70   } 2 42/42", "7 80 } 1 59/17"],
    );
}

/// Where the oldest events were dropped, nothing says what is open.
#[test]
fn lost_events_without_a_word() {
    assert_steps(
        &[
            thread(7),
            chain(10, 40),
            enter(10, 1),
            enter(20, 2),
            Event::Lost { count: 5 },
            exit(60, 3),
            enter(65, 2),
            exit(66, 2),
            exit(80, 1),
        ],
        &[
            "7 10 1 {",
            "7 20   2 {",
            "7 20 lost 5",
            "7 60   } 2 unknown 40/40",
            "7 60 } 1 unknown 50/10",
            "7 60 orphan 3",
            "7 65 2; 1/1",
            "7 80 orphan 1",
        ],
    );
}

/// A missing end is that of the calls within the one that ends.
#[test]
fn ends_that_do_not_fit() {
    assert_steps(
        &[thread(7), exit(5, 4), enter(10, 1), enter(20, 2), enter(30, 3), exit(40, 1), left(50, 1)],
        &[
            "7 5 orphan 4",
            "7 10 1 {",
            "7 20   2 {",
            "7 30     3 {",
            "7 40     } 3 unknown 10/10",
            "7 40   } 2 unknown 20/10",
            "7 40 } 1 30/10",
            "7 50 orphan 1 left",
        ],
    );
}

/// Calls that are open at the end are so up to the end of the process, and up to the last event if that is not known.
#[test]
fn calls_that_do_not_end() {
    let given = [thread(7), chain(10, 40), enter(10, 1), enter(20, 2), exit(30, 2)];
    assert_steps(&given, &["7 10 1 {", "7 20   2; 10/10", "7 30 } 1 open 20/10"]);
    let end = Chunk::End { process: 0, ticks: 90 };
    let open = trace(&[process(0, 0), functions(1..9), events(1, &given), end.clone()]);
    let expected = ["7 10 1 {", "7 20   2; 10/10", "7 90 } 1 open 80/70"];
    assert_eq!(steps(&open, &Choice::default()), expected);
    // The recorder leaves all calls when the process ends.
    let given = [&given[..], &[left(90, 1)]].concat();
    let closed = trace(&[process(0, 0), functions(1..9), events(1, &given), end]);
    assert_eq!(steps(&closed, &Choice::default()), expected);
}

/// The calls of two threads and a forked process, in the order of their times.
#[test]
fn threads_side_by_side() {
    let first = [thread(7), chain(10, 40), enter(10, 1), enter(30, 2), exit(31, 2), exit(60, 1)];
    let second = [thread(8), chain(20, 40), enter(20, 3), enter(25, 4), exit(40, 4), exit(50, 3)];
    let trace = trace(&[process(0, 0), functions(1..9), events(2, &second), events(1, &first)]);
    let expected =
        ["7 10 1 {", "8 20 3 {", "8 25   4; 15/15", "7 30   2; 1/1", "8 50 } 3 30/15", "7 60 } 1 50/49"];
    assert_eq!(steps(&trace, &Choice::default()), expected);
    let only = Choice { tids: vec![8], ..Choice::default() };
    assert_eq!(steps(&trace, &only), [expected[1], expected[2], expected[4]]);
    let none = Choice { pids: vec![11], ..Choice::default() };
    assert!(steps(&trace, &none).is_empty());
}

/// Returns what a recorder says of a thread that is in calls of these functions since these times.
fn state(pauses: u64, omitted: u64, open: &[(u32, u64)]) -> State {
    let call = |&(function, time): &(u32, u64)| Open { function, time, kind: OpenKind::Call };
    State { tid: 7, chain: 40, pauses, chains: vec![(40, omitted, open.iter().map(call).collect())] }
}

/// The kept part of a flight recorder begins with what was open.
#[test]
fn a_part_without_its_beginning() {
    let before = state(5, 0, &[(1, 10), (2, 20)]);
    let given = [enter(100, 3), exit(110, 3), exit(120, 2), exit(130, 1)];
    let trace = trace(&[process(0, 0), functions(1..9), later(1, 1000, before, &given)]);
    assert_eq!(
        steps(&trace, &Choice::default()),
        [
            "7 100 missing 1000",
            "7 100 1 { since 10",
            "7 100   2 { since 20",
            "7 100     3; 10/10",
            "7 120   } 2 20/10",
            "7 130 } 1 30/10",
        ]
    );
}

/// Of deep stacks, only the innermost calls are known.
#[test]
fn a_part_of_a_deep_stack() {
    let given = [enter(100, 3), exit(110, 3), exit(120, 2), exit(130, 1)];
    let before = state(0, 3, &[(2, 20)]);
    let trace = trace(&[process(0, 0), functions(1..9), later(1, 1000, before, &given)]);
    assert_eq!(
        steps(&trace, &Choice::default()),
        [
            "7 100 missing 1000",
            "7 100       2 { since 20",
            "7 100         3; 10/10",
            "7 120       } 2 20/10",
            "7 130 orphan 1",
        ]
    );
}

/// A chunk in the middle is missing. The calls that are open before and after it go on.
#[test]
fn a_gap() {
    let first = [thread(7), chain(10, 40), enter(10, 1), pause(2), enter(20, 2), enter(30, 3)];
    let last = [exit(120, 4), exit(130, 1)];
    let trace = trace(&[
        process(0, 0),
        functions(1..9),
        events(1, &first),
        later(1, 10, state(7, 0, &[(1, 10), (4, 50)]), &last),
    ]);
    assert_eq!(
        steps(&trace, &Choice::default()),
        [
            "7 10 1 {",
            "7 20   2 {",
            "7 30     3 {",
            "7 120 missing 4",
            "7 120     } 3 unknown 85/85",
            "7 120   } 2 unknown 95/10",
            "7 120   4 { since 50",
            "7 120   } 4 0/0",
            "7 130 } 1 113/18",
        ]
    );
}

/// Chunks that follow each other need no look at what was open, and calls go on.
#[test]
fn chunks_in_any_order() {
    let first = [thread(7), chain(10, 40), enter(10, 1), enter(20, 2)];
    let second = [exit(30, 2), enter(40, 3)];
    let third = [exit(50, 3), exit(60, 1)];
    let chunks = [
        process(0, 0),
        functions(1..9),
        later(1, 6, state(0, 0, &[]), &third),
        events(1, &first),
        later(1, 4, state(0, 0, &[]), &second),
    ];
    let expected = ["7 10 1 {", "7 20   2; 10/10", "7 40   3; 10/10", "7 60 } 1 50/30"];
    assert_eq!(steps(&trace(&chunks), &Choice::default()), expected);
    // The same events twice are shown once.
    let twice = [&chunks[..], &[chunks[3].clone()]].concat();
    let trace = trace(&twice);
    assert_eq!(trace.damage.len(), 1);
    assert_eq!(steps(&trace, &Choice::default()), expected);
}

/// A part of the time: what is open at its beginning begins there, and what is open at its end ends there.
#[test]
fn a_part_of_the_time() {
    let given = [
        thread(7),
        chain(1000, 40),
        enter(1000, 1),
        enter(1010, 2),
        enter(1020, 3),
        exit(1030, 3),
        enter(1040, 4),
        exit(1050, 4),
        exit(1060, 2),
        enter(1070, 5),
        exit(1080, 5),
        exit(1100, 1),
    ];
    let trace = trace(&[process(0, 0), functions(1..9), events(1, &given)]);
    let choice = |from, to| Choice { from, to, ..Choice::default() };
    assert_eq!(
        steps(&trace, &choice(Some(35), Some(65))),
        [
            "7 1035 1 { since 1000",
            "7 1035   2 { since 1010",
            "7 1040     4; 10/10",
            "7 1060   } 2 25/15",
            "7 1065 } 1 open 30/5",
        ]
    );
    // Nothing happens in this part, but something is open.
    assert_eq!(
        steps(&trace, &choice(Some(72), Some(75))),
        ["7 1072 1 { since 1000", "7 1072   5 { since 1070", "7 1075   } 5 open 3/3", "7 1075 } 1 open 3/0",]
    );
    assert_eq!(steps(&trace, &choice(None, Some(5))), ["7 1000 1 {", "7 1005 } 1 open 5/5"]);
    assert_eq!(steps(&trace, &choice(Some(200), None)), [] as [&str; 0]);
}

/// Calls of chosen functions, and what is within them.
#[test]
fn chosen_functions() {
    let given = [
        thread(7),
        enter(10, 1),
        enter(20, 2),
        enter(30, 3),
        enter(31, 2),
        exit(32, 2),
        exit(40, 3),
        exit(50, 2),
        enter(60, 3),
        exit(70, 3),
        exit(80, 1),
    ];
    let trace = trace(&[process(0, 0), functions(1..9), events(1, &given)]);
    let functions = trace.functions.iter().map(|function| function.name == "f2").collect();
    let choice = Choice { functions: Some(functions), ..Choice::default() };
    assert_eq!(
        steps(&trace, &choice),
        ["7 20 2 {", "7 30   3 {", "7 31     2; 1/1", "7 40   } 3 10/9", "7 50 } 2 30/20"]
    );
}

/// A forked child has the functions of its parent, and a program that it executes has its own.
#[test]
fn functions_of_processes() {
    let Chunk::Process(first) = process(0, 0) else { panic!("a process") };
    let child = gmon_trace::Process { id: 1, parent: Some(0), pid: 11, ..first.clone() };
    let executed = gmon_trace::Process { id: 2, parent: Some(1), pid: 11, ..first };
    let given = [thread(11), enter(10, 1), exit(20, 1)];
    let of = |process| Chunk::Events {
        process,
        block: 1,
        first: 0,
        before: State::default(),
        events: given.to_vec(),
    };
    let trace = trace(&[
        process(0, 0),
        functions(1..3),
        Chunk::Process(child),
        Chunk::Process(executed),
        of(1),
        of(2),
    ]);
    let names: Vec<Option<String>> = trace
        .steps(&Choice::default())
        .map(|step| match step.what {
            gmon_trace::What::Leaf(begun, _) => {
                trace.function(begun.function).map(|function| function.name.clone())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, [Some("f1".to_owned()), None]);
}

/// Of a million nested calls and more, as many are followed as there is room for, and the others are left out as a whole.
#[test]
fn deep_recursion() {
    const DEPTH: u64 = (1 << 20) + 1000;
    let down = (0..DEPTH).map(|n| enter(n, 1));
    let up = (0..DEPTH).map(|n| exit(DEPTH + n, 1));
    let given: Vec<Event> = [thread(7), chain(0, 40)].into_iter().chain(down).chain(up).collect();
    let trace = trace(&[process(0, 0), functions(1..3), events(1, &given)]);
    let (mut begun, mut ended, mut too_deep, mut orphans) = (0_u64, 0_u64, 0, 0);
    for step in trace.steps(&Choice::default()) {
        match step.what {
            gmon_trace::What::Begin(_) => begun += 1,
            gmon_trace::What::End(_) => ended += 1,
            gmon_trace::What::Leaf(..) => (begun, ended) = (begun + 1, ended + 1),
            gmon_trace::What::TooDeep => too_deep += 1,
            gmon_trace::What::Orphan { .. } => orphans += 1,
            _ => {}
        }
    }
    assert_eq!((begun, ended, too_deep, orphans), (1 << 20, 1 << 20, 1, 0));
}
