//! What the browser shows, on terminals of several sizes, and where keys lead.

use gmon_export::{Arc, Function, Module, Run, Thread, Time};
use gmon_screen::keys;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::browse::assembly::{Assembly, Row};
use crate::browse::chosen::{Choice, Chosen};
use crate::browse::draw::theme::Theme;
use crate::browse::draw::whole::draw;
use crate::browse::model::{Action, Model, View};
use crate::browse::source::{Cost, SourceLine, SourceText};
use crate::browse::worker::{Answer, Request};

const SIZES: [(u16, u16); 3] = [(40, 10), (80, 24), (200, 50)];
/// Names that other users may have chosen.
const HOSTILE: [&str; 4] = [
    "\x1b[2J\x1b[31mred",
    "line\nbreak\tand\r",
    "\u{202e}turned\u{200b}",
    "\u{6f22}\u{5b57}e\u{301}\u{1f600}",
];

fn function(name: &str, calls: u64, own: u64) -> Function {
    Function {
        name: name.to_owned(),
        demangled: name.to_owned(),
        module: Some(0),
        address: 0x1000 + name.len() as u64 * 16,
        calls,
        primitive: calls,
        self_ns: own * 1_000_000,
        samples: own,
        ..Function::default()
    }
}

/// Returns a sampled run: `main` calls `parse` and `eval`, and `parse` calls `next`.
fn run() -> Run {
    let arc = |caller, callee, calls| Arc { caller, callee, calls, ..Arc::default() };
    let mut run = Run {
        program: "prog".to_owned(),
        time: Time::Estimated,
        samples: 100,
        sample_period_ns: 1_000_000,
        modules: vec![Module { path: "/bin/prog".to_owned(), ..Module::default() }],
        functions: vec![
            function("main", 1, 0),
            function("ns::parse(int, std::vector<int, std::allocator<int> >)", 10, 19),
            function("eval", 4, 51),
            function("next", 1000, 30),
        ],
        arcs: vec![arc(None, 0, 1), arc(Some(0), 1, 10), arc(Some(0), 2, 4), arc(Some(1), 3, 1000)],
        ..Run::default()
    };
    gmon_export::estimate(&mut run);
    run
}

fn choice(chosen: Chosen, name: &str) -> Choice {
    Choice {
        chosen,
        name: name.to_owned(),
        which: "process 7".to_owned(),
        calls: Some(3),
        samples: None,
        life: String::new(),
        is_part: false,
    }
}

fn model(run: Run) -> Model {
    let choices = [
        choice(Chosen::All, "everything"),
        choice(Chosen::Program(0), "prog"),
        choice(Chosen::Program(1), "cc1"),
    ];
    Model::new(run, choices.to_vec(), None)
}

/// Returns what a terminal of this size shows.
fn screen(model: &mut Model, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(frame, model, Theme { has_colours: true })).expect("a screen");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

/// Presses keys, and returns the last thing that was asked for.
fn press(model: &mut Model, typed: &str) -> Option<Action> {
    keys(typed.as_bytes()).into_iter().filter_map(|key| model.key(key)).last()
}

#[test]
fn the_table_of_functions() {
    let mut model = model(run());
    let shown = screen(&mut model, (80, 24));
    let expected = [
        " 1 functions  2 graph  3 flame  4 source  5 assembly  6 programs",
        " prog: 1015 calls; CPU time, 100 samples of 1.000 ms; ~ estimated",
        "self %      self  inclusive       calls function",
        " 51.00  51.00 ms   51.00 ms           4 eval",
        " 30.00  30.00 ms   30.00 ms        1000 next",
        " 19.00  19.00 ms  ~49.00 ms          10 ns::parse",
        // No sample has seen it.
        "                  ~100.0 ms           1 main",
    ];
    assert_eq!(shown[..7], expected);
    assert_eq!(shown[23], "? help  q quit  Enter graph  s sort  / search  n full names          by self 1/4");
    let expected = [
        " 1 functions  2  3  4  5  6",
        " prog: 1015 calls; CPU time; ~ estimated",
        "self %      self function",
        " 51.00  51.00 ms eval",
    ];
    assert_eq!(screen(&mut model, (40, 10))[..4], expected);
    press(&mut model, "ssn");
    assert_eq!(
        screen(&mut model, (200, 50))[3].trim(),
        "30.00  30.00 ms   30.00 ms        1000   30.00 us next"
    );
    press(&mut model, "s");
    let by_name = screen(&mut model, (200, 50));
    assert!(by_name[6].ends_with("ns::parse(int, std::vector<int, std::allocator<int> >)"), "{}", by_name[6]);
}

#[test]
fn a_walk_through_callers_and_callees() {
    let mut model = model(run());
    screen(&mut model, (80, 24));
    press(&mut model, "/parse\r\r");
    assert_eq!((model.view, model.functions.rows.len()), (View::Graph, 1));
    let shown = screen(&mut model, (80, 24));
    let expected = "\
incl %       self  inclusive               calls callers, function, callees
 49.00  ~19.00 ms  ~49.00 ms               10/10    main
 49.00   19.00 ms  ~49.00 ms                  10 ns::parse  [prog]
 30.00  ~30.00 ms  ~30.00 ms           1000/1000    next";
    assert_eq!(shown[2..6].join("\n"), expected);
    // Into main, from there into eval, and back.
    press(&mut model, "\x1b[A\r");
    assert_eq!(model.function, Some(0));
    let callees = screen(&mut model, (40, 10))[3..7].join("\n");
    assert_eq!(
        callees,
        " ~100.0 ms       1    [not hooked]\n ~100.0 ms       1 main  [prog]\n ~51.00 ms       4    eval\n ~49.00 ms      10    ns::parse"
    );
    press(&mut model, "\x1b[B\r");
    assert_eq!(model.function, Some(2));
    press(&mut model, "\x7f\x1b[D");
    assert_eq!(model.graph.chosen(), Some(0), "the row of the walk is selected again");
    press(&mut model, "\x7f");
    assert_eq!(model.view, View::Functions);
    // A caller that is not known is no way.
    press(&mut model, "\x1b");
    press(&mut model, "\x1b[F\r\x1b[A\r");
    assert!(model.message.as_ref().is_some_and(|said| said.contains("not hooked")));
}

/// What is by sampled stacks is no estimate, and what was not counted is blank.
#[test]
fn sampled_stacks() {
    let node = |parent, function, samples| gmon_export::Node {
        parent,
        function,
        samples,
        self_ns: samples * 1_000_000,
        ..gmon_export::Node::default()
    };
    let mut run = run();
    run.time = Time::Sampled;
    run.nodes = vec![
        node(None, Some(0), 0),
        node(Some(0), Some(1), 19),
        node(None, None, 0),
        node(Some(2), Some(2), 81),
    ];
    run.arcs[2].calls = 0;
    let mut model = model(run);
    let shown = screen(&mut model, (80, 24));
    assert_eq!(shown[1], " prog: 1015 calls; CPU time, 100 samples of 1.000 ms; sampled stacks");
    assert!(shown.iter().all(|line| !line.contains('~')), "{shown:?}");
    press(&mut model, "\x1b[H2");
    let eval = screen(&mut model, (80, 24));
    let caller: Vec<&str> = eval[3].split_whitespace().collect();
    assert_eq!(caller, ["51.00", "51.00", "ms", "51.00", "ms", "main"]);
    press(&mut model, "3");
    let shown = screen(&mut model, (80, 24));
    assert!(shown[3].starts_with("|all, by sampled stacks"), "{}", shown[3]);
    assert!(shown[4].starts_with("|[path not known]"), "{}", shown[4]);
}

#[test]
fn the_flame_graph_says_that_it_is_an_estimate() {
    let mut model = model(run());
    press(&mut model, "3");
    let shown = screen(&mut model, (80, 24));
    let start = |line: &str, x: usize| line.chars().skip(x).take(6).collect::<String>();
    assert!(shown[3].starts_with("|all, estimated"), "{}", shown[3]);
    assert_eq!((start(&shown[4], 0), start(&shown[5], 0)), ("|main".into(), "|eval ".into()));
    assert_eq!((start(&shown[5], 41), start(&shown[6], 41)), ("|ns::p".into(), "|next".into()));
    press(&mut model, "\x1b[B\x1b[B\x1b[C");
    assert_eq!(screen(&mut model, (80, 24))[2], "ns::parse: ~49.00 ms, 49.00 %, itself ~19.00 ms");
    press(&mut model, "\r2");
    assert_eq!(model.graph.function, Some(1));
    press(&mut model, "3\x7f");
    assert_eq!(model.flame.as_ref().map(|flame| flame.zoom.len()), Some(2));
}

/// The source of a function that an interpreter executes.
fn interpreted() -> SourceText {
    let line = |number, cost, text: &str| SourceLine { number, cost, text: text.to_owned() };
    let cost = Cost { samples: 1, self_ns: 1_000_000, inclusive_ns: 50_000_000, executions: None };
    SourceText {
        path: "/src/eval.py".to_owned(),
        total_ns: 50_000_000,
        has_times: true,
        has_inclusive: true,
        has_executions: false,
        lines: vec![line(9, Cost::default(), "def eval():"), line(10, cost, "    return next()")],
        start: 1,
        remark: None,
    }
}

#[test]
fn source_and_assembly_are_read_when_they_are_opened() {
    let mut model = model(run());
    screen(&mut model, (80, 24));
    let Some(Action::Ask(Request::Source(symbol))) = press(&mut model, "4") else {
        panic!("nothing is asked")
    };
    assert_eq!(symbol.name, "eval");
    assert!(screen(&mut model, (40, 10))[3].contains("reading"));
    let line = |number, samples, executions, text: &str| SourceLine {
        number,
        cost: Cost { samples, self_ns: samples * 1_000_000, inclusive_ns: 0, executions },
        text: text.to_owned(),
    };
    let text = SourceText {
        path: "/src/eval.c".to_owned(),
        total_ns: 50_000_000,
        has_times: true,
        has_inclusive: false,
        has_executions: true,
        lines: vec![line(9, 0, Some(4), "int eval(void) {"), line(10, 50, None, "\treturn \x1b[2J;")],
        start: 1,
        remark: None,
    };
    // What is of another function has come too late.
    let other = crate::browse::data::Symbol { name: "next".to_owned(), ..symbol.clone() };
    model.take(Answer::Source(other, Err("late".to_owned())));
    model.take(Answer::Source(symbol.clone(), Ok(text)));
    let shown = screen(&mut model, (80, 24));
    let expected = "\
self %      self executed eval in /src/eval.c
                        4  9 int eval(void) {
100.00  50.00 ms          10         return \\u{1b}[2J;";
    assert_eq!(shown[2..5].join("\n"), expected);
    let Some(Action::Ask(Request::Assembly(symbol))) = press(&mut model, "5") else {
        panic!("nothing is asked")
    };
    let row = |address, samples, text: &str| Row { address, samples, text: text.to_owned(), count: None };
    let rows = vec![row(0x1000, 0, "push    %rbx"), row(0x1001, 50, "ret")];
    model.take(Answer::Assembly(
        symbol.clone(),
        Ok(Assembly { rows, has_counts: false, samples: 50, start: 1 }),
    ));
    assert_eq!(screen(&mut model, (80, 24))[4], "100.00      50    1001 ret");
    assert_eq!(press(&mut model, "45"), None, "both are known");
    // An interpreter knows what its lines call.
    model.take(Answer::Source(symbol.clone(), Ok(interpreted())));
    press(&mut model, "4");
    let expected = "\
self %      self incl % inclusive eval in /src/eval.py
                                   9 def eval():
  2.00  1.000 ms 100.00  50.00 ms 10     return next()";
    assert_eq!(screen(&mut model, (90, 24))[2..5].join("\n"), expected);
    let expected = "\
self % incl % eval in /src/eval.py
               9 def eval():
  2.00 100.00 10     return next()";
    assert_eq!(screen(&mut model, (70, 24))[2..5].join("\n"), expected);
    press(&mut model, "5");
    // Another function, whose module's file is gone.
    press(&mut model, "1\x1b[B");
    let Some(Action::Ask(Request::Assembly(symbol))) = press(&mut model, "5") else {
        panic!("nothing is asked")
    };
    model.take(Answer::Assembly(symbol, Err("gone, and here is why: ".to_owned() + &"long ".repeat(30))));
    let shown = screen(&mut model, (40, 10));
    assert!(shown[3].starts_with("gone") && shown[6].contains("long"), "{shown:#?}");
}

#[test]
fn a_program_alone() {
    let mut model = model(run());
    press(&mut model, "\x1b[B6\x1b[B\x1b[B");
    let asked = press(&mut model, "\r");
    assert_eq!(asked, Some(Action::Ask(Request::Choose(Chosen::Program(1)))));
    assert!(screen(&mut model, (80, 24))[23].starts_with("reading"));
    let mut part = run();
    part.functions.remove(0);
    part.arcs.clear();
    model.take(Answer::Chosen(Chosen::Program(0), Ok(Box::new(run()))));
    assert_eq!(model.chosen, Chosen::All, "this was not asked for last");
    model.take(Answer::Chosen(Chosen::Program(1), Ok(Box::new(part))));
    assert_eq!((model.view, model.functions.rows.len()), (View::Functions, 3));
    assert!(screen(&mut model, (80, 24))[1].starts_with(" cc1, process 7: 1014 calls;"));
    let selected = model.functions.chosen().map(|index| model.data.name(index, true));
    assert_eq!(selected.as_deref(), Some("next"), "the function is selected that was");
}

#[test]
fn nothing_was_recorded() {
    let mut model = Model::new(Run::default(), vec![choice(Chosen::All, "everything")], None);
    for size in SIZES {
        for view in "123456?".chars() {
            press(&mut model, &view.to_string());
            let shown = screen(&mut model, size);
            assert_eq!(shown.len(), usize::from(size.1), "{view}");
        }
        press(&mut model, "x");
    }
    press(&mut model, "1");
    let shown = screen(&mut model, (80, 24));
    assert!(shown[1].ends_with("no calls counted; no times"), "{}", shown[1]);
    assert_eq!(shown[3], "nothing was called or sampled");
}

#[test]
fn hostile_names_are_shown_with_escape_sequences() {
    let mut run = run();
    for (function, name) in run.functions.iter_mut().zip(HOSTILE) {
        function.demangled = name.to_owned();
    }
    run.functions.push(function(&"very::long<".repeat(10_000), 3, 1));
    run.program = HOSTILE[0].to_owned();
    run.modules[0].path = format!("/bin/{}", HOSTILE[1]);
    run.threads = vec![Thread { name: HOSTILE[0].to_owned(), ..Thread::default() }];
    let mut model = model(run);
    model.message = Some(HOSTILE[2].to_owned());
    for size in SIZES {
        for keys in ["1", "2", "3", "4", "5", "6", "1n", "/\u{6f22}", "\x1b"] {
            press(&mut model, keys);
            let shown = screen(&mut model, size);
            let text = shown.concat();
            assert!(!text.contains(gmon::is_hidden), "{keys:?} {text:?}");
        }
    }
}

/// Whatever is typed on a terminal of whatever size, the browser goes on.
#[test]
fn any_keys_at_any_size() {
    let typed = [
        "1", "2", "3", "4", "5", "6", "\t", "\x1b[Z", "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[5~",
        "\x1b[6~", "\x1b[H", "\x1b[F", "\r", "\x7f", "\x1b", "s", "r", "n", "?", "/", "e", "a", " ",
    ];
    let mut model = model(run());
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for _ in 0..3000 {
        let asked = press(&mut model, typed[next(typed.len() as u64) as usize]);
        match asked {
            Some(Action::Ask(Request::Choose(chosen))) => {
                model.take(Answer::Chosen(chosen, Ok(Box::new(run()))));
            }
            Some(Action::Ask(Request::Source(symbol))) => {
                model.take(Answer::Source(symbol, Err("none".to_owned())));
            }
            Some(Action::Ask(Request::Assembly(symbol))) => {
                model.take(Answer::Assembly(symbol, Ok(Assembly::default())));
            }
            Some(Action::Quit) | None => {}
        }
        let size = (1 + next(90) as u16, 1 + next(30) as u16);
        assert_eq!(screen(&mut model, size).len(), usize::from(size.1));
    }
}
