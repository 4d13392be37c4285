//! Call paths estimated from the call graph: what a function has cost with its callees is divided among its callers, and again
//! among theirs, as gprof's rule does it for one step.
//!
//! Measured times of arcs are divided in proportion to them; recursive calls are not shown again. In other runs, the functions of a
//! cycle have a frame in common. The sums are those of the table of functions.

use gmon_export::{Arc, Function, Run};

use crate::browse::flame::frame::{Frame, Of, Unit};

/// The call graph with weights.
pub(crate) struct Estimate {
    /// The arcs out of each function but those to itself, and their weights.
    callees: Vec<Vec<(u32, f64)>>,
    own: Vec<f64>,
    inclusive: Vec<f64>,
    cycle: Vec<Option<u32>>,
    cycles: Vec<Vec<u32>>,
    roots: Vec<(Of, f64)>,
    pub(crate) unit: Unit,
}

impl Estimate {
    pub(crate) fn new(run: &Run) -> Estimate {
        let unit = Unit::of(run);
        let weighed = (unit != Unit::Nanoseconds).then(|| weighed(run, unit));
        let run = weighed.as_ref().unwrap_or(run);
        let functions = &run.functions;
        let mut estimate = Estimate {
            callees: vec![Vec::new(); functions.len()],
            own: functions.iter().map(|function| function.self_ns as f64).collect(),
            inclusive: functions.iter().map(|function| function.inclusive_ns as f64).collect(),
            cycle: functions.iter().map(|function| function.cycle).collect(),
            cycles: run.cycles.iter().map(|cycle| cycle.functions.clone()).collect(),
            roots: Vec::new(),
            unit,
        };
        let mut is_called = vec![false; functions.len()];
        let mut roots: Vec<(Of, f64)> = Vec::new();
        for arc in run.pairs().iter().filter(|arc| arc.calls > 0 && arc.caller != Some(arc.callee)) {
            let weight = arc.inclusive_ns as f64;
            let callee = arc.callee;
            let is_within = arc.caller.is_some_and(|caller| estimate.is_same_cycle(caller, callee));
            if !is_within {
                is_called[callee as usize] = true;
            }
            match arc.caller {
                None => roots.push((estimate.entered(callee), weight)),
                Some(caller) if !is_within => estimate.callees[caller as usize].push((callee, weight)),
                Some(_) => {}
            }
        }
        for (index, cycle) in (0..).zip(&run.cycles) {
            if !cycle.functions.iter().any(|&function| is_called[function as usize]) {
                roots.push((Of::Cycle(index), cycle.inclusive_ns as f64));
            }
        }
        for (index, function) in (0..).zip(functions) {
            if !is_called[index as usize] && function.cycle.is_none() {
                roots.push((Of::Function(index), function.inclusive_ns as f64));
            }
        }
        estimate.roots = summed(roots);
        estimate
    }

    /// Returns the frame of everything.
    pub(crate) fn root(&self) -> Frame {
        let weight = self.roots.iter().fold(0.0, |sum, (_, weight)| sum + weight);
        Frame { of: Of::All, node: 0, weight, own: 0.0 }
    }

    /// Returns the frames below a frame, the widest first. `above` are those above it.
    pub(crate) fn children(&self, frame: &Frame, above: &[Of]) -> Vec<Frame> {
        let parts: Vec<(Of, f64)> = match frame.of {
            Of::All => self.roots.clone(),
            Of::Cycle(index) => {
                let members = self.cycles.get(index as usize).map_or(&[][..], Vec::as_slice);
                members.iter().map(|&of| (Of::Function(of), self.inclusive[of as usize])).collect()
            }
            Of::Function(function) => summed(self.below(function, above)),
            Of::Rest => Vec::new(),
        };
        let rest = if let Of::Function(function) = frame.of { self.own[function as usize] } else { 0.0 };
        let whole = parts.iter().fold(rest, |sum, (_, weight)| sum + weight);
        let scale = if whole > 0.0 { frame.weight / whole } else { 0.0 };
        let child = |&(of, weight): &(Of, f64)| {
            let mut child = Frame { of, node: 0, weight: weight * scale, own: 0.0 };
            child.own = self.own_part(&child, above, frame.of);
            child
        };
        let mut children: Vec<Frame> = parts.iter().filter(|(_, weight)| *weight > 0.0).map(child).collect();
        children.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        children
    }

    /// Returns what a frame has cost itself.
    fn own_part(&self, frame: &Frame, above: &[Of], parent: Of) -> f64 {
        let Of::Function(function) = frame.of else { return 0.0 };
        let own = self.own[function as usize];
        let path: Vec<Of> = above.iter().copied().chain([parent]).collect();
        let whole = self.below(function, &path).iter().fold(own, |sum, (_, weight)| sum + weight);
        if whole > 0.0 { frame.weight * own / whole } else { 0.0 }
    }

    /// Returns what a function calls that is not above it.
    fn below(&self, function: u32, above: &[Of]) -> Vec<(Of, f64)> {
        let callees = self.callees.get(function as usize).map_or(&[][..], Vec::as_slice);
        let entered = callees.iter().map(|&(callee, weight)| (self.entered(callee), weight));
        entered.filter(|(of, _)| !above.contains(of)).collect()
    }

    /// Returns the frame that a call of a function makes: that of its cycle, if it has one.
    fn entered(&self, function: u32) -> Of {
        self.cycle.get(function as usize).copied().flatten().map_or(Of::Function(function), Of::Cycle)
    }

    fn is_same_cycle(&self, a: u32, b: u32) -> bool {
        let cycle = |function: u32| self.cycle.get(function as usize).copied().flatten();
        cycle(a).is_some() && cycle(a) == cycle(b)
    }
}

/// Returns the sum for each frame.
fn summed(mut parts: Vec<(Of, f64)>) -> Vec<(Of, f64)> {
    let key = |of: &Of| match *of {
        Of::All => (0, 0),
        Of::Function(index) => (1, index),
        Of::Cycle(index) => (2, index),
        Of::Rest => (3, 0),
    };
    parts.sort_by_key(|(of, _)| key(of));
    parts.dedup_by(|next, first| {
        let is_same = next.0 == first.0;
        if is_same {
            first.1 += next.1;
        }
        is_same
    });
    parts
}

/// Returns the call graph of a run without times, in which each call or executed instruction has taken a nanosecond.
fn weighed(run: &Run, unit: Unit) -> Run {
    let function = |function: &Function| Function {
        self_ns: if unit == Unit::Instructions { function.instructions } else { function.calls },
        calls: function.calls,
        ..Function::default()
    };
    let arc = |arc: Arc| Arc { self_ns: 0, inclusive_ns: 0, ..arc };
    let mut weighed = Run {
        functions: run.functions.iter().map(function).collect(),
        arcs: run.pairs().into_iter().map(arc).collect(),
        ..Run::default()
    };
    gmon_export::estimate(&mut weighed);
    weighed
}

#[cfg(test)]
mod tests {
    use gmon_export::Time;

    use super::*;

    fn run(own: &[u64], arcs: &[(Option<u32>, u32, u64)]) -> Run {
        let function = |&self_ns: &u64| Function { self_ns, ..Function::default() };
        let arc = |&(caller, callee, calls): &(Option<u32>, u32, u64)| Arc {
            caller,
            callee,
            calls,
            ..Arc::default()
        };
        let mut run = Run {
            time: Time::Estimated,
            functions: own.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..Run::default()
        };
        run.arcs.sort_by_key(|arc| (arc.caller, arc.callee));
        gmon_export::estimate(&mut run);
        run
    }

    /// Returns the frames as a text, each with its weight, and what is below it in brackets.
    fn tree(estimate: &Estimate, frame: &Frame, above: &[Of]) -> String {
        let path: Vec<Of> = above.iter().copied().chain([frame.of]).collect();
        let below: Vec<String> =
            estimate.children(frame, above).iter().map(|child| tree(estimate, child, &path)).collect();
        let name = match frame.of {
            Of::All => "all".to_owned(),
            Of::Function(index) => index.to_string(),
            Of::Cycle(index) => format!("c{index}"),
            Of::Rest => "rest".to_owned(),
        };
        format!("{name}={:.0}/{:.0}({})", frame.weight, frame.own, below.join(" "))
    }

    fn text(run: &Run) -> String {
        let estimate = Estimate::new(run);
        tree(&estimate, &estimate.root(), &[])
    }

    #[test]
    fn by_gprof_s_rule_along_paths() {
        let run = run(
            &[10, 20, 40, 8],
            &[(None, 0, 1), (None, 1, 1), (Some(0), 2, 1), (Some(1), 2, 3), (Some(2), 3, 5), (Some(2), 2, 9)],
        );
        let expected = "all=78/0(1=56/20(2=36/30(3=6/6())) 0=22/10(2=12/10(3=2/2())))";
        assert_eq!(text(&run), expected);
    }

    #[test]
    fn cycles_have_a_frame() {
        let run =
            run(&[0, 30, 50, 20], &[(Some(0), 1, 2), (Some(1), 2, 7), (Some(2), 1, 6), (Some(2), 3, 1)]);
        assert_eq!(text(&run), "all=100/0(0=100/0(c0=100/0(2=70/50(3=20/20()) 1=30/30())))");
        // A cycle that nothing calls from outside.
        let run = self::run(&[1, 2], &[(Some(0), 1, 1), (Some(1), 0, 1)]);
        assert_eq!(text(&run), "all=3/0(c0=3/0(1=2/2() 0=1/1()))");
    }

    #[test]
    fn measured_recursion_ends() {
        let mut run = run(&[5, 7], &[]);
        run.time = Time::Measured { error_ns: 1.0 };
        let arc =
            |caller, callee, inclusive_ns| Arc { caller, callee, calls: 1, inclusive_ns, ..Arc::default() };
        run.arcs = vec![arc(None, 0, 12), arc(Some(0), 1, 9), arc(Some(1), 0, 4)];
        run.functions[0].inclusive_ns = 12;
        run.functions[1].inclusive_ns = 9;
        assert_eq!(text(&run), "all=12/0(0=12/4(1=8/8()))");
    }

    #[test]
    fn without_times_by_calls() {
        let mut run = run(&[0, 0], &[(None, 0, 2), (Some(0), 1, 6)]);
        run.time = Time::None;
        (run.functions[0].calls, run.functions[1].calls) = (2, 6);
        assert_eq!(text(&run), "all=8/0(0=8/2(1=6/6()))");
        assert_eq!(text(&Run::default()), "all=0/0()");
    }
}
