//! Calls as text: `name(arguments)`, `= result`, and remarks.

use gmon_trace::{Begun, Callee, Ended, How, OpenKind, Trace};

use crate::cli::traces::names::Names;

/// Writes calls.
pub(crate) struct Calls<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) names: Names<'t>,
}

impl<'t> Calls<'t> {
    pub(crate) fn new(trace: &'t Trace, raw: bool) -> Calls<'t> {
        Calls { trace, names: Names::new(trace, raw) }
    }

    /// Appends a function's name with the arguments of a call.
    pub(crate) fn call(&mut self, begun: &Begun, line: &mut String) {
        *line += self.names.of(begun.function);
        line.push('(');
        if let Some(arguments) = self.arguments(begun) {
            *line += &arguments;
        }
        line.push(')');
    }

    /// Returns the arguments of a call, if the trace knows of some.
    pub(crate) fn arguments(&self, begun: &Begun) -> Option<String> {
        Some(begun.arguments_in(self.trace)?.to_string())
    }

    /// Returns the result of a call, if the trace has it.
    pub(crate) fn result(&self, ended: &Ended) -> Option<String> {
        Some(ended.result_in(self.trace)?.to_string())
    }

    /// Returns ` = RESULT`, if the trace has it.
    pub(crate) fn equals(&self, ended: &Ended) -> String {
        self.result(ended).map_or_else(String::new, |result| format!(" = {result}"))
    }

    /// Returns a function's name.
    pub(crate) fn name(&mut self, function: Callee) -> &str {
        self.names.of(function)
    }
}

/// Returns what is special about a call's beginning. `since` is when it began if it was open already.
pub(crate) fn at_begin(begun: &Begun, since: impl FnOnce(u64) -> String) -> Vec<String> {
    let mut remarks = Vec::new();
    match begun.kind {
        OpenKind::Call => {}
        OpenKind::Jump => remarks.push("tail call".to_owned()),
        OpenKind::Inherited => remarks.push("... open since before the fork".to_owned()),
    }
    if let Some(time) = begun.earlier {
        remarks.push(format!("... open since {}", since(time)));
    }
    remarks
}

/// Returns what is special about how a call ends.
pub(crate) fn at_end(how: How) -> Option<&'static str> {
    match how {
        How::Returned => None,
        How::Left => Some("left by a jump or exception"),
        How::Open => Some("... open"),
        How::Unknown => Some("its end is not in the trace"),
    }
}
