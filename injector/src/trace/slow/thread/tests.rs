//! Tests of the calls of a thread.

use super::*;
use crate::trace::slow::tree::ROOT;

/// The function whose calls are wanted.
const WANTED: u32 = 5;

/// Adds events. Returns the durations of the wanted calls that end, and whether they are whole.
fn add(thread: &mut Thread, events: &[(Kind, u32, u64)]) -> Vec<(u64, SlowEnd, bool)> {
    let mut found = Vec::new();
    for &(kind, function, time) in events {
        if let Some(Ended { call, end }) = thread.add(kind, function, time, &mut |number| number == WANTED) {
            found.push((call.last - call.begin, end, !call.is_incomplete));
            thread.reuse(call);
        }
    }
    found
}

fn thread() -> Thread {
    Thread::new(&Budget::default())
}

#[test]
fn only_wanted_calls_are_followed() {
    let mut thread = thread();
    let found = add(
        &mut thread,
        &[
            (Kind::Thread, 77, 0),
            (Kind::Enter, 1, 10),
            (Kind::Enter, WANTED, 20),
            (Kind::Enter, 2, 30),
            (Kind::Enter, WANTED, 40),
            (Kind::Exit, WANTED, 50),
            (Kind::Exit, 2, 60),
            (Kind::Exit, WANTED, 70),
            (Kind::Exit, 1, 80),
            (Kind::Jump, WANTED, 100),
            (Kind::Left, WANTED, 103),
        ],
    );
    assert_eq!(found, [(50, SlowEnd::Returned, true), (3, SlowEnd::Left, true)]);
    assert_eq!((thread.tid, thread.spares.len()), (77, 1));
}

#[test]
fn a_call_waits_while_its_stack_is_not_the_current_one() {
    let mut thread = thread();
    add(&mut thread, &[(Kind::Chain, 1, 0), (Kind::Enter, WANTED, 10), (Kind::Chain, 2, 15)]);
    let other =
        [(Kind::Enter, WANTED, 20), (Kind::Exit, WANTED, 60), (Kind::Enter, 9, 61), (Kind::Exit, 9, 62)];
    assert_eq!(add(&mut thread, &other), [(40, SlowEnd::Returned, true)]);
    assert_eq!(add(&mut thread, &[(Kind::Chain, 1, 70)]), []);
    let call = thread.current().expect("it goes on");
    assert_eq!(call.tree.node(ROOT).map(|node| (node.own, node.waiting)), Some((60, 55)));
    assert_eq!(add(&mut thread, &[(Kind::Exit, WANTED, 75)]), [(65, SlowEnd::Returned, true)]);
}

#[test]
fn calls_that_are_open_at_a_fork_are_the_parents() {
    let mut thread = thread();
    let events = [
        (Kind::Inherited, WANTED, 10),
        (Kind::Inherited, 3, 11),
        (Kind::Exit, 3, 30),
        (Kind::Enter, WANTED, 40),
        (Kind::Exit, WANTED, 45),
        (Kind::Exit, WANTED, 50),
    ];
    assert_eq!(add(&mut thread, &events), [(5, SlowEnd::Returned, true)]);
}

#[test]
fn a_call_that_is_open_throughout_a_loss_goes_on() {
    let mut thread = thread();
    add(
        &mut thread,
        &[(Kind::Enter, 1, 5), (Kind::Enter, WANTED, 10), (Kind::Pause, 0, 4), (Kind::Enter, 2, 1000)],
    );
    // The beginnings are with the pause, and one of 3 that is lost.
    let events = [
        (Kind::Lost, 0, 50),
        (Kind::Chain, 0, 1100),
        (Kind::Open, 1, 12),
        (Kind::Open, WANTED, 17),
        (Kind::Open, 3, 1050),
        (Kind::Exit, 3, 1200),
        (Kind::Exit, WANTED, 1300),
    ];
    assert_eq!(add(&mut thread, &events), [(1290, SlowEnd::Returned, false)]);
    assert_eq!((thread.lost, thread.take_unknown().len()), (50, 0));
}

#[test]
fn a_call_that_ends_within_a_loss_is_no_other_one() {
    let mut thread = thread();
    add(&mut thread, &[(Kind::Enter, WANTED, 10), (Kind::Enter, 2, 20)]);
    // Another call of the same function has begun meanwhile: at 500.
    thread.lose(7);
    let events =
        [(Kind::Open, WANTED, 500), (Kind::Enter, 4, 600), (Kind::Exit, 4, 610), (Kind::Exit, WANTED, 700)];
    assert_eq!(add(&mut thread, &events), [(200, SlowEnd::Returned, false)]);
    // It may be the same one, if a pause was lost.
    assert_eq!(thread.take_unknown(), HashMap::from([(WANTED, 0)]));
    // One of another beginning is not.
    add(&mut thread, &[(Kind::Enter, WANTED, 720), (Kind::Enter, 2, 730)]);
    thread.lose(7);
    let events =
        [(Kind::Open, WANTED, 790), (Kind::Enter, 4, 795), (Kind::Exit, 4, 796), (Kind::Exit, WANTED, 799)];
    assert_eq!(add(&mut thread, &events), [(9, SlowEnd::Returned, false)]);
    assert_eq!(thread.take_unknown(), HashMap::from([(WANTED, 1)]));
    // And none.
    add(&mut thread, &[(Kind::Enter, WANTED, 800)]);
    thread.lose(1);
    assert_eq!(add(&mut thread, &[(Kind::Open, 1, 900), (Kind::Exit, 1, 950)]), []);
    assert_eq!(thread.take_unknown(), HashMap::from([(WANTED, 1)]));
    assert!(thread.current().is_none() && thread.close(2000).is_empty());
}

#[test]
fn a_snapshot_is_passed_over_or_resumed_at() {
    let mut thread = thread();
    add(&mut thread, &[(Kind::Enter, WANTED, 10)]);
    let snapshot = [(Kind::Snapshot, 7, 2), (Kind::Chain, 0, 20), (Kind::Open, WANTED, 10)];
    add(&mut thread, &snapshot);
    assert_eq!(add(&mut thread, &[(Kind::Exit, WANTED, 40)]), [(30, SlowEnd::Returned, true)]);
    add(&mut thread, &[(Kind::Enter, WANTED, 100)]);
    thread.lose(3);
    add(&mut thread, &snapshot[..2]);
    add(&mut thread, &[(Kind::Open, WANTED, 100)]);
    assert_eq!(add(&mut thread, &[(Kind::Exit, WANTED, 170)]), [(70, SlowEnd::Returned, false)]);
}

#[test]
fn open_calls_end_with_their_process() {
    let mut thread = thread();
    add(&mut thread, &[(Kind::Enter, WANTED, 10), (Kind::Enter, 2, 20)]);
    let ended = thread.close(100);
    let found: Vec<_> = ended.iter().map(|ended| (ended.call.last - ended.call.begin, ended.end)).collect();
    assert_eq!(found, [(90, SlowEnd::Open)]);
}

#[test]
fn arguments_are_those_of_the_wanted_call() {
    let mut thread = thread();
    let word = u64::from_le_bytes(*b"abcdefgh");
    let data = |bytes| (Kind::Data, bytes, word);
    add(
        &mut thread,
        &[(Kind::Enter, WANTED, 10), data(10), (Kind::More, 0, u64::from_le_bytes(*b"ij      "))],
    );
    assert_eq!(thread.current().map(|call| call.arguments.clone()), Some(b"abcdefghij".to_vec()));
    // Those of calls within it are not.
    add(&mut thread, &[(Kind::Enter, 2, 20), data(3)]);
    assert_eq!(thread.current().map(|call| call.arguments.len()), Some(10));
}

/// Whatever a process writes, the time of a call is that of its nodes.
#[test]
fn any_events() {
    const KINDS: [Kind; 15] = [
        Kind::None,
        Kind::Enter,
        Kind::Jump,
        Kind::Inherited,
        Kind::Mark,
        Kind::Exit,
        Kind::Left,
        Kind::Chain,
        Kind::Pause,
        Kind::Lost,
        Kind::Open,
        Kind::Data,
        Kind::More,
        Kind::Thread,
        Kind::Snapshot,
    ];
    let mut state = 1_u64;
    let mut random = move |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut thread = thread();
    let (mut time, mut ended) = (0, 0);
    for _ in 0..200_000 {
        time += random(100);
        let kind =
            KINDS[if random(4) == 0 { random(15) } else { [1, 1, 5, 5, 5][random(5) as usize] } as usize];
        let at = if random(5000) == 0 { random(u64::MAX) } else { time };
        if let Some(Ended { mut call, .. }) =
            thread.add(kind, random(8) as u32, at, &mut |number| number == WANTED)
        {
            ended += 1;
            let own = |call: &Call| {
                let nodes = call.tree.visited().iter().filter_map(|&index| call.tree.node(index));
                nodes.fold(0_u64, |sum, node| sum.saturating_add(node.own))
            };
            let known = call.last.saturating_sub(call.begin) - call.paused - call.lost.min(call.last);
            assert!(call.is_incomplete || own(&call) == known, "{} {known}", own(&call));
            call.tree.sum_up(1, 1);
            thread.reuse(call);
        }
    }
    assert!(ended > 50, "{ended}");
}
