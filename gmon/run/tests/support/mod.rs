//! Recording times for the tests.

#![allow(dead_code, reason = "each test file uses its part")]

use gmon_run::{
    ArcTimes, Block, Calls, Clock, ClockSource, Ending, Function, FunctionTimes, Hits, Module, Node, Origin,
    Process, Program, Recording, Slow, SlowCall, SlowEnd, SlowNode, Stack, Thread, Typical,
};

/// The calls of each function in [`example`], by hand: the samples of arcs and those of nodes have the same sums.
pub(crate) const CALLS: [(&str, u64); 4] = [("main", 1), ("parse(int)", 10), ("libc_read", 40), ("work", 4)];
/// The self time of each function in [`example`], in nanoseconds.
pub(crate) const SELF_NS: [(&str, u64); 4] =
    [("main", 1_000_000), ("parse(int)", 20_000_000), ("libc_read", 300_000_000), ("work", 4_000_000_000)];

/// Two threads of a program: `main` calls `parse` ten times and that calls `libc_read` of a library; a worker calls
/// `work`, which calls itself. With `paths`, the call paths are there too.
pub(crate) fn example(paths: bool) -> Recording {
    let module = |name: &str, build_id: &[u8], start| Module {
        path: name.to_owned(),
        build_id: build_id.to_vec(),
        digest: 0,
        start,
        limit: start + 0x1000,
        offset: start,
    };
    let function = |name: &str, module, address, file: &str, line| Function {
        name: name.to_owned(),
        module,
        address,
        size: 0x80,
        file: file.to_owned(),
        line,
    };
    let hits = |function, address, samples| Hits { program: 0, function, address, samples };
    let calls = |caller, site, callee, calls| Calls { program: 0, caller, site, callee, calls };
    let stack = |parent, function, samples| Stack { program: 0, parent, function, samples };
    let thread = |tid, name: &str, samples| Thread {
        program: 0,
        pid: 100,
        tid,
        name: name.to_owned(),
        life_ns: 5_000_000_000,
        outside_ns: 7_000_000,
        overhead_ns: 1_234,
        ready_ns: None,
        samples,
    };
    let row = |function, thread, calls, primitive, self_ns, inclusive_ns, min_ns, max_ns, bucket: usize| {
        let mut histogram = vec![0; bucket + 1];
        histogram[bucket] = calls;
        FunctionTimes {
            function,
            thread,
            calls,
            primitive,
            open: 0,
            counted: 0,
            self_ns,
            waiting_ns: 0,
            self_raw_ns: self_ns + 10,
            inclusive_ns,
            inclusive_raw_ns: inclusive_ns + 100,
            min_ns,
            max_ns,
            samples: [0, 5, 1, 900][function as usize],
            histogram,
        }
    };
    let arc = |caller, callee, thread, calls, self_ns, inclusive_ns, min_ns, max_ns| ArcTimes {
        caller,
        callee,
        thread,
        calls,
        open: 0,
        counted: 0,
        self_ns,
        inclusive_ns,
        min_ns,
        max_ns,
    };
    let node = |parent, function, thread, calls, self_ns, samples| Node {
        parent,
        function,
        thread,
        calls,
        self_ns,
        waiting_ns: self_ns / 3,
        samples,
    };
    let mut measured = Recording {
        runs: vec![Origin {
            id: 0xfedc_ba98_7654_3210,
            host: "node7".to_owned(),
            rank: Some(0),
            start_unix_ns: 1_700_000_000_000_000_000,
            duration_ns: 2_000_000,
        }],
        programs: vec![Program {
            name: "prog".to_owned(),
            processes: 1,
            pid: 100,
            overhead: 3,
            ..Program::default()
        }],
        processes: vec![
            Process {
                program: 0,
                pid: 100,
                parent: 99,
                run: 0xfedc_ba98_7654_3210,
                begin_us: 5_000,
                end_us: 4_900_000,
                ending: Ending::Exited(3),
                calls: 55,
                samples: 7,
                self_ns: 4_321_000_000,
            },
            Process { pid: 4, begin_us: 2, end_us: 1 << 60, ending: Ending::Killed(9), ..Process::default() },
        ],
        processes_left_out: 8,
        start_unix_ns: 1_700_000_000_000_000_000,
        duration_ns: 5_000_000_000,
        clock: Clock {
            source: ClockSource::Tsc,
            ticks_per_second: 2.5e9,
            inside_ns: 10.5,
            outside_ns: 4.25,
            error_ns: 1.5,
            counted_below_ns: 0.0,
        },
        sample_period_ns: 4_000_000,
        modules: vec![
            module("/usr/bin/prog", &[0xab, 0x01, 0xff], 0x1000),
            module("/usr/lib/libc.so.6", &[0xc0, 0xde], 0x2000),
        ],
        functions: vec![
            function("main", 0, 0x1000, "/src/prog.c", 10),
            function("_Z5parsei", 0, 0x1100, "/src/prog.c", 20),
            function("libc_read", 1, 0x2100, "", 0),
            function("work", 0, 0x1200, "/src/work.c", 5),
        ],
        calls: vec![
            calls(None, 0, 0, 1),
            calls(Some(0), 0x1010, 1, 4),
            calls(Some(0), 0x1020, 1, 6),
            calls(Some(1), 0x1104, 2, 40),
            calls(None, 0, 3, 2),
            calls(Some(3), 0x1230, 3, 2),
        ],
        hits: vec![hits(1, 0x1100, 2), hits(1, 0x1108, 3), hits(2, 0x2101, 1), hits(3, 0x1234, 900)],
        // One sample in `parse` and ten in `work` have no stack.
        stacks: vec![
            stack(None, Some(0), 0),
            stack(Some(0), Some(1), 4),
            stack(None, None, 0),
            stack(Some(1), Some(2), 1),
            stack(Some(2), Some(3), 800),
            stack(Some(4), Some(3), 90),
        ],
        blocks: vec![
            Block { program: 0, module: 0, address: 0x1100, executions: 10 },
            Block { program: 0, module: 0, address: 0x1008, executions: 1 },
        ],
        threads: vec![thread(100, "prog", 7), thread(101, "worker", 905)],
        rows: vec![
            row(0, 0, 1, 1, 1_000_000, 321_000_000, 321_000_000, 321_000_000, 28),
            row(1, 0, 10, 10, 20_000_000, 320_000_000, 30_000_000, 33_000_000, 24),
            row(2, 0, 40, 40, 300_000_000, 300_000_000, 7_000_000, 8_000_000, 22),
            row(3, 1, 4, 2, 4_000_000_000, 4_000_000_000, 1_000_000_000, 2_000_000_000, 30),
        ],
        arcs: vec![
            arc(None, 0, 0, 1, 1_000_000, 321_000_000, 321_000_000, 321_000_000),
            arc(Some(0), 1, 0, 10, 20_000_000, 320_000_000, 30_000_000, 33_000_000),
            arc(Some(1), 2, 0, 40, 300_000_000, 300_000_000, 7_000_000, 8_000_000),
            arc(None, 3, 1, 2, 2_000_000_000, 4_000_000_000, 2_000_000_000, 2_000_000_000),
            arc(Some(3), 3, 1, 2, 2_000_000_000, 2_000_000_000, 1_000_000_000, 1_000_000_000),
        ],
        ..Recording::default()
    };
    if paths {
        measured.nodes = vec![
            node(None, Some(0), 0, 1, 1_000_000, 0),
            node(Some(0), Some(1), 0, 10, 20_000_000, 5),
            node(Some(1), Some(2), 0, 40, 300_000_000, 1),
            node(None, Some(3), 1, 2, 2_000_000_000, 450),
            node(Some(3), Some(3), 1, 2, 2_000_000_000, 449),
            node(Some(4), None, 1, 7, 0, 1),
        ];
        measured.nodes_lost = 7;
        measured.slow = slow();
    }
    measured
}

/// The slowest calls of `parse`: one that read for long, and one of which events were lost.
fn slow() -> Slow {
    let node = |parent, function, calls, self_ns| SlowNode {
        parent,
        function,
        calls,
        self_ns,
        ..SlowNode::default()
    };
    let call = SlowCall {
        pid: 100,
        tid: 100,
        thread: "prog".to_owned(),
        arguments: "text=\"ab\"".to_owned(),
        start_unix_ns: 1_700_000_001_000_000_000,
        duration_ns: 32_000_000,
        overhead_ns: 50,
        waiting_ns: Some(29_500_000),
        ready_ns: Some(1_000),
        ..SlowCall::default()
    };
    Slow {
        typical: vec![Typical {
            node: 0,
            calls: 8,
            others: 2,
            min_ns: 30_000,
            max_ns: 32_000_000,
            p99_ns: 31_000_000,
            left_out: 3,
            ..Typical::default()
        }],
        calls: vec![
            SlowCall { node: 2, ..call.clone() },
            SlowCall {
                node: 5,
                duration_ns: 500_000,
                waiting_ns: None,
                ready_ns: None,
                lost_ns: 100_000,
                is_incomplete: true,
                end: SlowEnd::Open,
                arguments: String::new(),
                ..call
            },
        ],
        nodes: vec![
            SlowNode { present: 8, median_ns: 40_000, ..node(None, Some(1), 8, 16_000) },
            SlowNode { present: 8, median_ns: 36_000, ..node(Some(0), Some(2), 32, 31_000_000) },
            SlowNode { longest_ns: 32_000_000, ..node(None, Some(1), 1, 2_000_000) },
            SlowNode {
                longest_ns: 29_000_000,
                waiting_ns: 29_500_000,
                ..node(Some(2), Some(2), 4, 29_600_000)
            },
            node(Some(2), None, 9, 400_000),
            node(None, Some(1), 1, 400_000),
        ],
    }
}

/// The same run without measured times.
pub(crate) fn sampled() -> Recording {
    let counted = example(false);
    Recording { clock: Clock::default(), threads: Vec::new(), rows: Vec::new(), arcs: Vec::new(), ..counted }
}

/// The same run without measured times, of which the samples have no stacks.
pub(crate) fn counted() -> Recording {
    Recording { stacks: Vec::new(), ..sampled() }
}

/// Numbers that look random, always the same ones for a seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A program of that size, all of it in one thread.
pub(crate) fn synthetic(functions: u32, arcs: u32, nodes: u32) -> Recording {
    let mut numbers = Numbers(1);
    let mut measured = example(false);
    measured.functions = (0..functions)
        .map(|index| Function {
            name: format!("_ZN9synthetic{}function{index}Ev", "3abc".repeat(numbers.below(4) as usize)),
            module: (index % 2),
            address: 0x1000 + u64::from(index) * 0x40,
            file: format!("/src/file{}.cc", index / 50),
            line: index % 50 * 20 + 1,
            size: 0x20,
        })
        .collect();
    measured.hits = (0..functions)
        .map(|function| Hits {
            program: 0,
            function,
            address: 0x1000 + u64::from(function) * 0x40 + numbers.below(0x20),
            samples: numbers.below(3),
        })
        .collect();
    measured.calls = (0..arcs)
        .map(|index| {
            let caller = numbers.below(u64::from(functions)) as u32;
            let site = 0x1000 + u64::from(caller) * 0x40 + numbers.below(0x20);
            let calls = 1 + numbers.below(1 << 16);
            Calls { program: 0, caller: Some(caller), site, callee: index % functions, calls }
        })
        .collect();
    measured.rows = (0..functions)
        .map(|function| {
            let calls = 1 + numbers.below(1 << 20);
            let self_ns = calls * (1 + numbers.below(1 << 10));
            let mut histogram = vec![0; 8];
            histogram.extend((0..4).map(|_| numbers.below(calls)));
            FunctionTimes {
                function,
                thread: 0,
                calls,
                primitive: calls,
                open: 0,
                counted: 0,
                self_ns,
                waiting_ns: 0,
                self_raw_ns: self_ns + calls * 10,
                inclusive_ns: self_ns * 3,
                inclusive_raw_ns: self_ns * 4,
                min_ns: 100,
                max_ns: 5000,
                samples: numbers.below(calls),
                histogram,
            }
        })
        .collect();
    measured.arcs = (0..arcs)
        .map(|index| {
            let calls = 1 + numbers.below(1 << 16);
            ArcTimes {
                caller: Some(numbers.below(u64::from(functions)) as u32),
                callee: index % functions,
                thread: 0,
                calls,
                open: 0,
                counted: 0,
                self_ns: calls * (1 + numbers.below(1 << 10)),
                inclusive_ns: calls * (1 + numbers.below(1 << 12)),
                min_ns: numbers.below(100),
                max_ns: 100 + numbers.below(10_000),
            }
        })
        .collect();
    measured.stacks.clear();
    // A node is called by one in the later half of those before it, so that paths are some 40 frames deep.
    measured.nodes = (0..nodes)
        .map(|index| {
            let calls = 1 + numbers.below(1 << 10);
            let back = 1 + numbers.below(u64::from(index / 2).max(1)) as u32;
            Node {
                parent: index.checked_sub(back.min(index.max(1))),
                function: Some(numbers.below(u64::from(functions)) as u32),
                thread: 0,
                calls,
                self_ns: calls * (1 + numbers.below(1 << 10)),
                waiting_ns: calls * numbers.below(2),
                samples: numbers.below(2),
            }
        })
        .collect();
    measured
}
