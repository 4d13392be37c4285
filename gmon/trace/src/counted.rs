//! Counts the values of the arguments and results in a trace: by function, caller and path, as `gprofinject --values --paths` does in the
//! process.

use std::collections::HashMap;

use gmon_run::{ValueCounter, ValueCounts, ValueKind as Shown, ticks};

use crate::hash::Quick;
use crate::step::{Begun, Ended, Step, What};
use crate::trace::{Callee, Trace};
use crate::value::{Encoded, Value, ValueKind};

/// The most nodes of all threads together, and the most values with a count in all tables together.
const NODES_MAX: usize = 1 << 20;
const VALUES_MAX: usize = 1 << 22;
/// The most tables. Values for which there is none are lost.
const TABLES_MAX: usize = 1 << 18;

/// The values of one argument of a function, or of its result, in the calls of one path.
#[derive(Clone, Debug)]
pub struct CountedValues {
    pub function: Callee,
    pub caller: Option<Callee>,
    /// The index of the path among the nodes of the thread.
    pub node: u32,
    /// The name of the argument; one that has none is `value` and its number among those that are traced. `retval` of a result.
    pub name: String,
    pub counts: ValueCounts,
}

/// The values in the calls of the threads that have used one buffer.
#[derive(Clone, Debug, Default)]
pub struct ThreadValues {
    /// The paths of calls, parents before their children. They have no times.
    pub nodes: Vec<ticks::Node<Callee>>,
    /// The tables, in the order of functions and arguments.
    pub values: Vec<CountedValues>,
}

/// Which values of a call they are: results come after arguments.
type Index = (bool, u32);

/// The function, the caller, the node, and which values of the call they are.
type Key = (Callee, Option<Callee>, u32, Index);

/// The values of a trace, thread by thread.
#[derive(Debug)]
pub struct Counting {
    buffers: HashMap<u32, Buffer, Quick>,
    nodes_left: usize,
    values_left: usize,
    tables_left: usize,
    /// The number of values that were not counted, because there were too many callers.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Buffer {
    tid: u32,
    /// The open calls of each stack, each with its node.
    open: HashMap<u32, Vec<(Callee, u32)>, Quick>,
    nodes: Vec<ticks::Node<Callee>>,
    known: HashMap<(Option<u32>, Option<Callee>), u32>,
    tables: HashMap<Key, (String, ValueCounter)>,
}

impl Default for Counting {
    fn default() -> Counting {
        Counting {
            buffers: HashMap::default(),
            nodes_left: NODES_MAX,
            values_left: VALUES_MAX,
            tables_left: TABLES_MAX,
            lost: 0,
        }
    }
}

impl Counting {
    /// Adds a step. All steps of a thread are needed.
    pub fn add(&mut self, trace: &Trace, step: &Step) {
        let mut buffer = self.buffers.remove(&step.buffer).unwrap_or_default();
        if buffer.tid != step.tid {
            buffer.tid = step.tid;
            buffer.open.clear();
        }
        match &step.what {
            What::Begin(begun) => {
                let node = self.begin(&mut buffer, trace, begun, step.chain);
                buffer.open.entry(step.chain).or_default().push((begun.function, node));
            }
            What::Mark(begun) => {
                self.begin(&mut buffer, trace, begun, step.chain);
            }
            What::Leaf(begun, ended) => {
                let node = self.begin(&mut buffer, trace, begun, step.chain);
                self.result(&mut buffer, trace, ended, node);
            }
            What::End(ended) => {
                let open = buffer.open.entry(step.chain).or_default();
                // Events may be missing.
                if let Some(at) = open.iter().rposition(|(function, _)| *function == ended.function) {
                    let (_, node) = open[at];
                    open.truncate(at);
                    self.result(&mut buffer, trace, ended, node);
                }
            }
            What::Orphan { .. } | What::Lost(_) | What::Missing(_) | What::Stack | What::TooDeep => {}
        }
        self.buffers.insert(step.buffer, buffer);
    }

    /// Counts the arguments of a call. Returns its node.
    fn begin(&mut self, buffer: &mut Buffer, trace: &Trace, begun: &Begun, chain: u32) -> u32 {
        let outer = buffer.open.get(&chain).and_then(|open| open.last()).map(|&(_, node)| node);
        let node = self.node(buffer, outer, begun.function);
        if let Some(of) = buffer.nodes.get_mut(node as usize) {
            of.calls = of.calls.saturating_add(1);
        }
        if begun.arguments.is_some() {
            let arguments = begun.arguments_in(trace).into_iter().flatten();
            for (number, (name, value)) in (0..).zip(arguments) {
                let name = || match name {
                    Some(name) if !name.is_empty() => name.to_owned(),
                    _ => format!("value{}", number + 1),
                };
                self.value(buffer, (begun.function, begun.caller, node, (false, number)), name, &value);
            }
        }
        node
    }

    fn result(&mut self, buffer: &mut Buffer, trace: &Trace, ended: &Ended, node: u32) {
        let result = ended.result_in(trace).filter(|_| ended.result.is_some());
        if let Some(value) = result {
            let key = (ended.function, ended.caller, node, (true, 0));
            self.value(buffer, key, || "retval".to_owned(), &value);
        }
    }

    /// Returns the node of a call. Recursive calls have that of the function's outermost call on the path.
    fn node(&mut self, buffer: &mut Buffer, outer: Option<u32>, function: Callee) -> u32 {
        let of = |node: u32| buffer.nodes.get(node as usize);
        let mut above = outer;
        while let Some(node) = above.and_then(of) {
            if node.function == Some(function) || node.function.is_none() {
                return above.unwrap_or(0);
            }
            above = node.parent;
        }
        if let Some(&node) = buffer.known.get(&(outer, Some(function))) {
            return node;
        }
        let key = if self.nodes_left > 0 { (outer, Some(function)) } else { (None, None) };
        *buffer.known.entry(key).or_insert_with(|| {
            self.nodes_left = self.nodes_left.saturating_sub(1);
            let (parent, function) = key;
            buffer.nodes.push(ticks::Node { parent, function, calls: 0, own: 0, waited: 0 });
            buffer.nodes.len() as u32 - 1
        })
    }

    fn value(&mut self, buffer: &mut Buffer, key: Key, name: impl FnOnce() -> String, value: &Value) {
        let Some(kind) = kind_of(value.kind) else { return };
        let Some(bits) = bits_of(kind, value) else { return };
        if !buffer.tables.contains_key(&key) {
            let Some(less) = self.tables_left.checked_sub(1) else {
                self.lost = self.lost.saturating_add(1);
                return;
            };
            self.tables_left = less;
        }
        let (_, counter) = buffer.tables.entry(key).or_insert_with(|| (name(), ValueCounter::new(kind)));
        counter.add(bits, &mut self.values_left, || text_of(bits, value));
    }

    /// Returns the values by the number of the buffer.
    pub fn finish(self) -> HashMap<u32, ThreadValues> {
        let of_buffer = |(number, buffer): (u32, Buffer)| {
            let mut tables: Vec<_> = buffer.tables.into_iter().collect();
            tables.sort_unstable_by_key(|((function, caller, node, index), _)| {
                (*function, *index, *node, *caller)
            });
            let values = tables.into_iter().map(|((function, caller, node, _), (name, counter))| {
                CountedValues { function, caller, node, name, counts: counter.finish() }
            });
            (number, ThreadValues { nodes: buffer.nodes, values: values.collect() })
        };
        self.buffers.into_iter().map(of_buffer).collect()
    }
}

/// Returns the kind of values that are counted; `None` if they are neither numbers of at most 8 bytes nor texts.
fn kind_of(kind: &ValueKind) -> Option<Shown> {
    match kind {
        ValueKind::Signed { bytes: ..=8 } | ValueKind::Enum { .. } => Some(Shown::Signed),
        ValueKind::Unsigned { bytes: ..=8 } | ValueKind::Bool => Some(Shown::Unsigned),
        ValueKind::Hex | ValueKind::Octal | ValueKind::Pointer | ValueKind::FunctionPointer => {
            Some(Shown::Hex)
        }
        ValueKind::Char => Some(Shown::Char),
        ValueKind::Float { bytes: 8 } => Some(Shown::Double),
        ValueKind::Float { bytes: 4 } => Some(Shown::Single),
        ValueKind::CString | ValueKind::RustStr | ValueKind::StdString => Some(Shown::Text),
        ValueKind::Signed { .. }
        | ValueKind::Unsigned { .. }
        | ValueKind::Float { .. }
        | ValueKind::Struct { .. }
        | ValueKind::Bits { .. }
        | ValueKind::Characters { .. }
        | ValueKind::Unit
        | ValueKind::Unsupported => None,
    }
}

/// Returns the bits of a value, extended as the kind demands; of a text, a hash.
fn bits_of(kind: Shown, value: &Value) -> Option<u64> {
    let size = match value.kind {
        ValueKind::Signed { bytes } | ValueKind::Unsigned { bytes } | ValueKind::Enum { bytes, .. } => *bytes,
        ValueKind::Bool => 1,
        ValueKind::Float { bytes: 4 } => 4,
        _ => 8,
    };
    let shift = 64 - 8 * u32::from(size.clamp(1, 8));
    match (kind, value.encoded?) {
        (Shown::Text, Encoded::Text { bytes, is_cut }) => Some(hash(bytes, is_cut.into())),
        (Shown::Text, Encoded::Unreadable(_)) => Some(hash(&[], UNREADABLE)),
        (Shown::Text, _) => None,
        (Shown::Signed, Encoded::Scalar(bits)) => Some(((bits << shift) as i64 >> shift) as u64),
        (_, Encoded::Scalar(bits)) => Some(bits << shift >> shift),
        _ => None,
    }
}

/// In place of the flag of a text: the text could not be read.
const UNREADABLE: u8 = 2;

/// FNV-1a, as the agent has it.
fn hash(bytes: &[u8], flag: u8) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    add(bytes.iter().fold(0xcbf2_9ce4_8422_2325, add), &flag) | 1
}

/// Returns the text of a value, or its name in an enumeration.
fn text_of(bits: u64, value: &Value) -> Option<String> {
    match (value.kind, value.encoded?) {
        (ValueKind::Enum { variants, .. }, _) => {
            variants.iter().find(|(known, _)| *known == bits as i64).map(|(_, name)| name.clone())
        }
        (ValueKind::Bool, _) => Some(if bits == 0 { "false" } else { "true" }.to_owned()),
        (_, Encoded::Text { bytes, is_cut }) => {
            let more = if is_cut { "..." } else { "" };
            Some(format!("{}{more}", String::from_utf8_lossy(bytes)))
        }
        (ValueKind::CString | ValueKind::RustStr | ValueKind::StdString, _) => {
            Some("(not readable)".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'v>(kind: &'v ValueKind, encoded: Encoded<'v>) -> Option<(u64, Option<String>)> {
        let value = Value { kind, encoded: Some(encoded) };
        let bits = bits_of(kind_of(kind)?, &value)?;
        Some((bits, text_of(bits, &value)))
    }

    #[test]
    fn values_of_each_kind() {
        let scalar = |kind: &ValueKind, bits| of(kind, Encoded::Scalar(bits)).map(|(bits, _)| bits);
        // Further bits of the register mean nothing.
        assert_eq!(scalar(&ValueKind::Signed { bytes: 4 }, 0x7_ffff_fffe), Some(-2_i64 as u64));
        assert_eq!(scalar(&ValueKind::Unsigned { bytes: 2 }, 0x7_ffff), Some(0xffff));
        assert_eq!(scalar(&ValueKind::Float { bytes: 4 }, 0xff_4000_0000), Some(0x4000_0000));
        assert_eq!(scalar(&ValueKind::Signed { bytes: 16 }, 1), None);
        assert_eq!(scalar(&ValueKind::Unsupported, 1), None);
        let colours = ValueKind::Enum { name: String::new(), variants: vec![(-1, "RED".into())], bytes: 4 };
        assert_eq!(of(&colours, Encoded::Scalar(0xffff_ffff)), Some((u64::MAX, Some("RED".to_owned()))));
        assert_eq!(of(&ValueKind::Bool, Encoded::Scalar(0x100)), Some((0, Some("false".to_owned()))));
        let text = |bytes, is_cut| of(&ValueKind::CString, Encoded::Text { bytes, is_cut });
        let [whole, cut] = [text(b"abc", false), text(b"abc", true)].map(|found| found.expect("a text"));
        assert_eq!((whole.1.as_deref(), cut.1.as_deref()), (Some("abc"), Some("abc...")));
        assert_ne!(whole.0, cut.0);
        let unreadable = of(&ValueKind::CString, Encoded::Unreadable(0)).and_then(|(_, text)| text);
        assert_eq!(unreadable.as_deref(), Some("(not readable)"));
    }
}
