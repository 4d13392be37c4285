//! A program for pgo.sh: a small language of expressions, whose values are computed by a virtual machine, with maps, sorting and trait
//! objects. The same work in each run: `words ROUNDS`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::hash::{BuildHasherDefault, DefaultHasher};

type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(i64),
    Name(String),
    Operator(char),
    Open,
    Close,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(&c) = rest.peek() {
        match c {
            ' ' | '\n' => {
                rest.next();
            }
            '0'..='9' => {
                let mut number = 0i64;
                while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                    number = number.wrapping_mul(10).wrapping_add(digit.into());
                    rest.next();
                }
                found.push(Token::Number(number));
            }
            'a'..='z' => {
                let mut name = String::new();
                while let Some(&c) = rest.peek().filter(|c| c.is_ascii_alphanumeric()) {
                    name.push(c);
                    rest.next();
                }
                found.push(Token::Name(name));
            }
            '(' | ')' => {
                found.push(if c == '(' { Token::Open } else { Token::Close });
                rest.next();
            }
            _ => {
                found.push(Token::Operator(c));
                rest.next();
            }
        }
    }
    found
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(i64),
    Load(usize),
    Add,
    Subtract,
    Multiply,
    Remainder,
}

#[derive(Default)]
struct Compiler {
    names: Map<String, usize>,
    steps: Vec<Step>,
}

impl Compiler {
    fn expression(&mut self, tokens: &mut std::slice::Iter<Token>, least: u8) {
        match tokens.next() {
            Some(Token::Number(number)) => self.steps.push(Step::Push(*number)),
            Some(Token::Name(name)) => {
                let next = self.names.len();
                let index = *self.names.entry(name.clone()).or_insert(next);
                self.steps.push(Step::Load(index));
            }
            Some(Token::Open) => {
                self.expression(tokens, 0);
                tokens.next();
            }
            other => panic!("unexpected {other:?}"),
        }
        while let Some(Token::Operator(operator)) = tokens.as_slice().first() {
            let (level, step) = match operator {
                '+' => (1, Step::Add),
                '-' => (1, Step::Subtract),
                '*' => (2, Step::Multiply),
                '%' => (2, Step::Remainder),
                other => panic!("unknown operator {other}"),
            };
            if level <= least {
                break;
            }
            tokens.next();
            self.expression(tokens, level);
            self.steps.push(step);
        }
    }
}

fn run(steps: &[Step], values: &[i64], stack: &mut Vec<i64>) -> i64 {
    stack.clear();
    for step in steps {
        let mut two = || (stack.pop().unwrap_or(0), stack.pop().unwrap_or(0));
        let value = match *step {
            Step::Push(number) => number,
            Step::Load(index) => values.get(index).copied().unwrap_or(0),
            Step::Add => { let (b, a) = two(); a.wrapping_add(b) }
            Step::Subtract => { let (b, a) = two(); a.wrapping_sub(b) }
            Step::Multiply => { let (b, a) = two(); a.wrapping_mul(b) }
            Step::Remainder => match two() {
                (0, a) => a,
                (b, a) => a.wrapping_rem(b),
            },
        };
        stack.push(value);
    }
    stack.pop().unwrap_or(0)
}

trait Sink {
    fn take(&mut self, value: i64);
    fn result(&self) -> i64;
}

#[derive(Default)]
struct Sum(i64);
#[derive(Default)]
struct Buckets(BTreeMap<i64, u32>);
#[derive(Default)]
struct Sorted(Vec<i64>);

impl Sink for Sum {
    fn take(&mut self, value: i64) { self.0 = self.0.wrapping_mul(31).wrapping_add(value) }
    fn result(&self) -> i64 { self.0 }
}
impl Sink for Buckets {
    fn take(&mut self, value: i64) { *self.0.entry(value % 997).or_default() += 1 }
    fn result(&self) -> i64 { self.0.iter().map(|(value, &count)| value ^ i64::from(count)).sum() }
}
impl Sink for Sorted {
    fn take(&mut self, value: i64) { self.0.push(value) }
    fn result(&self) -> i64 {
        let mut values = self.0.clone();
        values.sort_by(|a, b| (a % 100).cmp(&(b % 100)).then(b.cmp(a)));
        values.iter().step_by(7).fold(0, |sum, value| sum ^ value)
    }
}

fn main() {
    let rounds: i64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut seed = 42u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 8) % below
    };
    let mut results: Vec<Box<dyn Sink>> = vec![Box::<Sum>::default(), Box::<Buckets>::default(), Box::<Sorted>::default()];
    let mut stack = Vec::new();
    for round in 0..rounds {
        let mut text = String::new();
        for part in 0..20 {
            if part > 0 {
                text.push(['+', '-', '*', '%'][random(4) as usize]);
            }
            match random(3) {
                0 => write!(text, "{}", random(1000)).unwrap(),
                1 => write!(text, "name{}", random(12)).unwrap(),
                _ => write!(text, "(a{} + {} * b)", random(6), random(50)).unwrap(),
            }
        }
        let tokens = tokens(&text);
        let mut compiler = Compiler::default();
        compiler.expression(&mut tokens.iter(), 0);
        let mut values = vec![0; compiler.names.len()];
        for turn in 0..50 {
            values.iter_mut().enumerate().for_each(|(index, value)| *value = turn * 7 + index as i64 + round);
            let value = run(&compiler.steps, &values, &mut stack);
            let sink = if turn % 10 == 0 { 1 } else { usize::from(turn % 25 == 3) * 2 };
            results[sink].take(value);
        }
    }
    for result in &results {
        println!("{}", result.result());
    }
}
