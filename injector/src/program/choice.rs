//! Functions that a user switches off or on while a process is profiled: `--disable` and `--enable`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::Result;
use gprofinject_image::FunctionKind;
use gprofinject_plan::Verdict;

use crate::program::filters::Filters;
use crate::program::library::Library;
use crate::program::planned::Planned;
use crate::program::profilee::Profilee;

/// A pattern, and whether the functions that match it are switched off.
#[derive(Debug)]
pub(crate) struct Choice {
    filters: Filters,
    off: bool,
}

/// What a process has switched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switched {
    /// The patterns in their order, which are also for libraries that will be loaded.
    choices: Vec<Rc<Choice>>,
    /// The numbers of the functions that are off, by module.
    off: BTreeMap<Part, BTreeSet<u32>>,
}

/// A module of a process: the program, or a library by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Program,
    Library(u32),
}

impl Choice {
    /// Returns the choice that a pattern means, as `-I` and `-X` have them. One that names a library is for all of its functions.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub(crate) fn new(glob: &str, off: bool) -> Result<Choice> {
        let option = if off { "--disable" } else { "--enable" };
        // The name of a library says by itself that it is none of a function.
        let is_module = glob.contains(".so") && !glob.contains('!');
        let module = is_module.then(|| format!("{glob}!"));
        Ok(Choice { filters: Filters::only(option, module.as_deref().unwrap_or(glob))?, off })
    }

    /// Returns the numbers of those hooked functions of a program that match.
    pub(crate) fn of_program(&self, profilee: &Profilee) -> BTreeSet<u32> {
        self.among(profilee.planned, &["", &profilee.name()])
    }

    /// Returns the numbers of those hooked functions of a library that match.
    pub(crate) fn of_library(&self, library: &Library) -> BTreeSet<u32> {
        let soname = gprofinject_image::headers::soname(library.planned.subject.bytes);
        let name = library.name();
        self.among(library.planned, &[name, soname.as_deref().unwrap_or(name)])
    }

    fn among(&self, planned: &Planned, module: &[&str]) -> BTreeSet<u32> {
        let Some(plan) = &planned.plan else { return BTreeSet::new() };
        let functions = planned.subject.functions();
        let numbered = plan.function_of.iter().zip(0..);
        let matches = numbered.filter(|&(&index, _)| {
            functions
                .get(index as usize)
                .is_some_and(|function| self.filters.select(module, function.names()))
        });
        matches.map(|(_, number)| number).collect()
    }

    /// Returns why a function of the program that matches is not hooked, if there is one.
    pub(crate) fn refused(&self, profilee: &Profilee) -> Option<String> {
        let module = ["", &profilee.name()];
        let refused = profilee.planned.functions().find_map(|(function, verdict)| match verdict {
            Verdict::Refused(reason)
                if function.kind != FunctionKind::Start && self.filters.select(&module, function.names()) =>
            {
                Some((function, reason))
            }
            _ => None,
        });
        refused.map(|(function, reason)| format!("{} is not hooked ({})", function.name, reason.name()))
    }
}

impl Switched {
    /// Notes that functions of a module were switched. Returns how many of them have changed.
    pub(crate) fn note(&mut self, part: Part, numbers: &BTreeSet<u32>, off: bool) -> usize {
        let known = self.off.entry(part).or_default();
        let is_new = |number: &&u32| known.contains(number) != off;
        let changed = numbers.iter().filter(is_new).count();
        if off {
            known.extend(numbers);
        } else {
            known.retain(|number| !numbers.contains(number));
        }
        changed
    }

    /// Notes a choice, which libraries that are loaded later obey as well.
    pub(crate) fn remember(&mut self, choice: Choice) {
        /// A user can switch as often as they like.
        const MOST: usize = 1000;
        if self.choices.len() == MOST {
            self.choices.remove(0);
        }
        self.choices.push(Rc::new(choice));
    }

    /// Returns whether a function is switched off.
    pub(crate) fn is_off(&self, part: Part, number: u32) -> bool {
        self.off.get(&part).is_some_and(|off| off.contains(&number))
    }

    /// Returns the numbers of the functions of a module that are off.
    pub(crate) fn numbers(&self, part: Part) -> impl Iterator<Item = u32> {
        self.off.get(&part).into_iter().flatten().copied()
    }

    /// Returns the number of functions that are off.
    pub(crate) fn count(&self) -> usize {
        self.off.values().map(BTreeSet::len).sum()
    }

    /// Returns the numbers of the functions of a library that are off when the process loads it.
    pub(crate) fn of_library(&mut self, library: &Library) -> BTreeSet<u32> {
        let part = Part::Library(library.number);
        if !self.off.contains_key(&part) {
            for choice in &self.choices.clone() {
                let numbers = choice.of_library(library);
                self.note(part, &numbers, choice.off);
            }
        }
        self.off.get(&part).cloned().unwrap_or_default()
    }
}
