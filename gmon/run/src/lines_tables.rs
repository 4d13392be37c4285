//! The table of the samples of lines in a file.

use crate::columns::Columns;
use crate::error::ReadError;
use crate::lines::LineSamples;
use crate::wire;

/// Returns the message of the table.
pub(crate) fn written(all: &[LineSamples]) -> wire::Lines {
    wire::Lines {
        program: all.iter().map(|of| of.program).collect(),
        function: all.iter().map(|of| of.function).collect(),
        line: all.iter().map(|of| of.line).collect(),
        own: all.iter().map(|of| of.own).collect(),
        inclusive: all.iter().map(|of| of.inclusive).collect(),
        nested: all.iter().map(|of| of.nested).collect(),
    }
}

/// Returns what the message says. Indexes of the model are not checked.
pub(crate) fn read(all: &wire::Lines) -> Result<Vec<LineSamples>, ReadError> {
    let len = all.function.len();
    Columns { table: "lines", len }.check(&[
        ("program", all.program.len()),
        ("line", all.line.len()),
        ("own", all.own.len()),
        ("inclusive", all.inclusive.len()),
        ("nested", all.nested.len()),
    ])?;
    let line = |index: usize| LineSamples {
        program: all.program[index],
        function: all.function[index],
        line: all.line[index],
        own: all.own[index],
        inclusive: all.inclusive[index],
        nested: all.nested[index],
    };
    Ok((0..len).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Function, Module, Program, Recording};
    use crate::sum::Sum;

    fn line(program: u32, function: u32, line: u32, samples: u64) -> LineSamples {
        LineSamples { program, function, line, own: samples, inclusive: 2 * samples, nested: 1 }
    }

    /// Two files have functions of the same name.
    fn run() -> Recording {
        let function = |file: &str| Function {
            name: "f (x.py:1)".into(),
            file: file.into(),
            line: 1,
            ..Function::default()
        };
        let program = |name: &str| Program { name: name.into(), ..Program::default() };
        Recording {
            sample_period_ns: 4,
            modules: vec![Module { path: "[Python]".into(), ..Module::default() }],
            programs: vec![program("a"), program("b")],
            functions: vec![function("a/x.py"), function("b/x.py")],
            lines: vec![line(0, 0, 3, 5), line(0, 1, 3, 7), line(1, 1, 3, 9)],
            ..Recording::default()
        }
    }

    #[test]
    fn read_as_written() {
        assert_eq!(Recording::read(&run().write()).expect("valid"), run());
        let changes: [fn(&mut Recording); 5] = [
            |run| run.lines[0].program = 2,
            |run| run.lines[1].function = 2,
            |run| run.lines[2].line = 0,
            |run| run.lines[2].own = 19,
            |run| run.lines[2].nested = 19,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = run();
            change(&mut wrong);
            assert!(Recording::read(&wrong.write()).is_err(), "{number}");
        }
        let columns: [fn(&mut wire::Lines); 5] = [
            |lines| lines.program.clear(),
            |lines| lines.line.push(1),
            |lines| lines.own.truncate(1),
            |lines| lines.inclusive.clear(),
            |lines| lines.nested.push(0),
        ];
        for (number, change) in columns.iter().enumerate() {
            let mut wrong = written(&run().lines);
            change(&mut wrong);
            assert!(read(&wrong).is_err(), "{number}");
        }
    }

    #[test]
    fn sums_and_parts() {
        let mut two = run();
        two.merge(run()).expect("one period");
        two.check().expect("valid");
        assert_eq!((two.functions.len(), two.lines.len()), (2, 6));
        let mut sum = Sum::default();
        for _ in 0..2 {
            sum.add(run()).expect("one period");
        }
        let sum = sum.finish();
        let own: Vec<u64> = sum.lines.iter().map(|line| line.own).collect();
        assert_eq!((own, sum.lines[0].inclusive, sum.lines[0].nested), (vec![10, 14, 18], 20, 2));
        two.retain_programs(|program| program.name == "b");
        assert_eq!(two.lines, [line(0, 1, 3, 9), line(0, 1, 3, 9)]);
    }
}
