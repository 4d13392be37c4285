//! The file of a budget: TOML, each `[[budget]]` of which bounds functions of a run.

use std::fmt;

use gprofinject_image::names::similar::similar;
use toml_span::value::ValueInner;
use toml_span::{Span, Value};

/// The bounds on the functions that match a pattern.
#[derive(Debug, PartialEq)]
pub(crate) struct Budget {
    /// The line in the file, from 1 on, that has the pattern.
    pub(crate) line: usize,
    /// The pattern, which may be `MODULE!FUNCTION`.
    pub(crate) function: String,
    /// The pattern of the labels of processes whose part of the run is bounded; `None` if the whole run is.
    pub(crate) label: Option<String>,
    /// Whether a run may have no such function.
    pub(crate) optional: bool,
    /// The bounds, in the order of their lines; at least one.
    pub(crate) bounds: Vec<Bound>,
}

/// What functions may have at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    /// The line in the file, from 1 on.
    pub(crate) line: usize,
    pub(crate) quantity: Quantity,
    pub(crate) most: Most,
}

/// The value of a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Most {
    Number(u64),
    /// A share of the whole run, from 0 to 100.
    Percent(f64),
}

impl fmt::Display for Most {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Most::Number(number) => write!(f, "{number}"),
            Most::Percent(percent) => write!(f, "{percent} %"),
        }
    }
}

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Calls,
    Instructions,
    InclusiveInstructions,
    InstructionsPercent,
    InclusiveInstructionsPercent,
    TimePercent,
    InclusiveTimePercent,
}

impl Quantity {
    const ALL: [Quantity; 7] = [
        Quantity::Calls,
        Quantity::Instructions,
        Quantity::InclusiveInstructions,
        Quantity::InstructionsPercent,
        Quantity::InclusiveInstructionsPercent,
        Quantity::TimePercent,
        Quantity::InclusiveTimePercent,
    ];

    /// Returns the key in the file.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Quantity::Calls => "calls",
            Quantity::Instructions => "instructions",
            Quantity::InclusiveInstructions => "inclusive_instructions",
            Quantity::InstructionsPercent => "instructions_percent",
            Quantity::InclusiveInstructionsPercent => "inclusive_instructions_percent",
            Quantity::TimePercent => "time_percent",
            Quantity::InclusiveTimePercent => "inclusive_time_percent",
        }
    }

    /// Whether a function has it with what it calls. The bound is then on each function, because a sum would count twice what one of
    /// them does when another has called it.
    pub(crate) fn is_inclusive(self) -> bool {
        use Quantity::{InclusiveInstructions, InclusiveInstructionsPercent, InclusiveTimePercent};
        matches!(self, InclusiveInstructions | InclusiveInstructionsPercent | InclusiveTimePercent)
    }

    /// Whether it is a share of the whole run.
    pub(crate) fn is_share(self) -> bool {
        self.key().ends_with("_percent")
    }

    fn of(key: &str) -> Option<Quantity> {
        Quantity::ALL.into_iter().find(|quantity| quantity.key() == key)
    }
}

/// Why a text is no budget.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The line, from 1 on.
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// Reads the text of a file.
///
/// # Errors
/// It is not TOML, or not that of a budget.
pub(crate) fn parse(text: &str) -> Result<Vec<Budget>, Mistake> {
    // An editor of Windows may have put a mark in front.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let newlines = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at).collect();
    let reader = Reader { newlines };
    let mut whole = toml_span::parse(text).map_err(|error| reader.mistake(error.span, error.to_string()))?;
    let ValueInner::Table(table) = whole.take() else { return Err(reader.empty()) };
    let mut budgets = Vec::new();
    for (key, mut value) in table {
        if key.name != "budget" {
            let what = format!("unknown key `{}`, expected [[budget]]", key.name);
            return Err(reader.mistake(key.span, what));
        }
        let ValueInner::Array(items) = value.take() else {
            return Err(reader.mistake(key.span, "expected [[budget]], with two brackets".to_owned()));
        };
        for item in items {
            budgets.push(reader.budget(item)?);
        }
    }
    if budgets.is_empty() {
        return Err(reader.empty());
    }
    Ok(budgets)
}

/// Reads the parts of a text.
struct Reader {
    /// Where its lines end.
    newlines: Vec<usize>,
}

impl Reader {
    fn line(&self, span: Span) -> usize {
        self.newlines.partition_point(|&end| end < span.start) + 1
    }

    fn mistake(&self, span: Span, what: String) -> Mistake {
        Mistake { line: self.line(span), what }
    }

    fn empty(&self) -> Mistake {
        Mistake { line: 1, what: "no [[budget]] in it".to_owned() }
    }

    fn budget(&self, mut item: Value<'_>) -> Result<Budget, Mistake> {
        let span = item.span;
        let ValueInner::Table(table) = item.take() else {
            return Err(self.mistake(span, "expected a table [[budget]]".to_owned()));
        };
        let (mut function, mut label, mut optional, mut bounds) = (None, None, false, Vec::new());
        for (key, mut value) in table {
            let name = key.name.as_ref();
            match (name, value.take(), Quantity::of(name)) {
                ("function", ValueInner::String(glob), _) if !glob.is_empty() => {
                    function = Some((self.line(key.span), glob.into_owned()));
                }
                ("function", ..) => {
                    let what = "function: expected the name of a function or a pattern, in quotes";
                    return Err(self.mistake(key.span, what.to_owned()));
                }
                ("label", ValueInner::String(glob), _) => label = Some(glob.into_owned()),
                ("label", ..) => {
                    let what = "label: expected the label of processes or a pattern, in quotes";
                    return Err(self.mistake(key.span, what.to_owned()));
                }
                ("optional", ValueInner::Boolean(value), _) => optional = value,
                ("optional", ..) => {
                    return Err(self.mistake(key.span, "optional: expected true or false".to_owned()));
                }
                (_, value, Some(quantity)) => {
                    let most = most(quantity, &value)
                        .ok_or_else(|| self.mistake(key.span, format!("{name}: {}", expected(quantity))))?;
                    bounds.push(Bound { line: self.line(key.span), quantity, most });
                }
                _ => return Err(self.mistake(key.span, unknown(name))),
            }
        }
        bounds.sort_by_key(|bound| bound.line);
        let Some((line, function)) = function else {
            let what = "a budget without `function`, the name or pattern of what it bounds";
            return Err(Mistake {
                line: bounds.first().map_or(self.line(span), |bound| bound.line),
                what: what.to_owned(),
            });
        };
        if bounds.is_empty() {
            let what = format!("a budget without a bound, expected one of {}", keys().join(", "));
            return Err(Mistake { line, what });
        }
        Ok(Budget { line, function, label, optional, bounds })
    }
}

fn keys() -> Vec<&'static str> {
    Quantity::ALL.map(Quantity::key).to_vec()
}

/// Returns the value of a bound, or `None` if it is none.
fn most(quantity: Quantity, value: &ValueInner<'_>) -> Option<Most> {
    if !quantity.is_share() {
        return u64::try_from(value.as_integer()?).ok().map(Most::Number);
    }
    // A whole number up to 100 has the same value as a float.
    let percent = value.as_float().or_else(|| value.as_integer().map(|number| number as f64))?;
    (0.0..=100.0).contains(&percent).then_some(Most::Percent(percent))
}

fn expected(quantity: Quantity) -> &'static str {
    if quantity.is_share() {
        "expected a number of percent, from 0 to 100"
    } else {
        "expected a whole number, from 0 on"
    }
}

/// Returns what is wrong with a key that a budget does not have.
fn unknown(name: &str) -> String {
    if name.contains("bytes") {
        return format!("{name}: runs do not record bytes, so that they cannot be bounded");
    }
    let known = || keys().into_iter().chain(["function", "label", "optional"]);
    let near = similar(&[name.to_owned()], known().map(str::to_owned));
    let (which, names) = match near.is_empty() {
        true => ("expected one of", known().collect::<Vec<_>>().join(", ")),
        false => ("similar keys:", near.join(", ")),
    };
    format!("unknown key `{name}`, {which} {names}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> (usize, String) {
        let Mistake { line, what } = parse(text).expect_err(text);
        (line, what)
    }

    #[test]
    fn budgets() {
        let text = "# all\n[[budget]]\nfunction = \"parse_*\"\ninstructions = 5_000_000\ncalls = 10000\n\n\
                    [[budget]]\nfunction = 'libc*!read'\noptional = true\ntime_percent = 30\ninclusive_time_percent = 0.5\n";
        let bound = |line, quantity, most| Bound { line, quantity, most };
        let expected = [
            Budget {
                line: 3,
                function: "parse_*".to_owned(),
                label: None,
                optional: false,
                bounds: vec![
                    bound(4, Quantity::Instructions, Most::Number(5_000_000)),
                    bound(5, Quantity::Calls, Most::Number(10_000)),
                ],
            },
            Budget {
                line: 8,
                function: "libc*!read".to_owned(),
                label: None,
                optional: true,
                bounds: vec![
                    bound(10, Quantity::TimePercent, Most::Percent(30.0)),
                    bound(11, Quantity::InclusiveTimePercent, Most::Percent(0.5)),
                ],
            },
        ];
        assert_eq!(parse(text).as_deref(), Ok(&expected[..]));
        assert_eq!(parse(&format!("\u{feff}{}", text.replace('\n', "\r\n"))).as_deref(), Ok(&expected[..]));
    }

    #[test]
    fn every_quantity_has_a_key() {
        for quantity in Quantity::ALL {
            let text = format!("[[budget]]\nfunction = 'f'\n{} = 7\n", quantity.key());
            assert_eq!(parse(&text).expect("a budget")[0].bounds[0].quantity, quantity);
        }
    }

    #[test]
    fn what_is_no_budget() {
        for text in ["", "\n\n", "# nothing\n", "budget = []"] {
            assert_eq!(mistake(text), (1, "no [[budget]] in it".to_owned()), "{text:?}");
        }
        for (text, line, what) in [
            ("\nlimit = 3", 2, "unknown key `limit`, expected [[budget]]"),
            ("[budget]\nfunction = 'f'", 1, "expected [[budget]], with two brackets"),
            ("budget = [3]", 1, "expected a table [[budget]]"),
            (
                "[[budget]]\ncalls = 3",
                2,
                "a budget without `function`, the name or pattern of what it bounds",
            ),
            ("\n[[budget]]\n", 2, "a budget without `function`, the name or pattern of what it bounds"),
        ] {
            assert_eq!(mistake(text), (line, what.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn keys_and_values() {
        let number = "expected a whole number, from 0 on";
        let percent = "expected a number of percent, from 0 to 100";
        for (text, what) in [
            ("calls = -1", format!("calls: {number}")),
            ("calls = 1.5", format!("calls: {number}")),
            ("calls = '3'", format!("calls: {number}")),
            ("instructions = [1]", format!("instructions: {number}")),
            ("inclusive_instructions = 2021-01-01", String::new()),
            ("time_percent = -0.1", format!("time_percent: {percent}")),
            ("time_percent = 100.5", format!("time_percent: {percent}")),
            ("time_percent = nan", format!("time_percent: {percent}")),
            ("time_percent = inf", format!("time_percent: {percent}")),
            ("time_percent = true", format!("time_percent: {percent}")),
            ("optional = 1", "optional: expected true or false".to_owned()),
            ("bytes = 3", "bytes: runs do not record bytes, so that they cannot be bounded".to_owned()),
            ("call = 3", "unknown key `call`, similar keys: calls".to_owned()),
            ("zzz = 3", "unknown key `zzz`, expected one of calls, instructions,".to_owned()),
            ("calls = 99999999999999999999", String::new()),
            ("calls = 1\ncalls = 2", "duplicate key".to_owned()),
            ("calls =", String::new()),
            ("calls = \"", String::new()),
        ] {
            let (line, said) = mistake(&format!("[[budget]]\nfunction = 'f'\n\n{text}"));
            let expected_line = if text.contains('\n') { 5 } else { 4 };
            assert_eq!((line, said.starts_with(&what)), (expected_line, true), "{text}: {line}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
        for text in ["function = ''", "function = 3", "function = ['a']"] {
            let (line, said) = mistake(&format!("[[budget]]\ncalls = 1\n{text}"));
            assert_eq!((line, said.starts_with("function: expected the name")), (3, true), "{said}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let text = format!("a = {}", "[".repeat(500_000));
        assert_eq!(mistake(&text).0, 1);
    }
}
