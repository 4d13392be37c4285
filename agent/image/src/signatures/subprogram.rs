//! Reads what debug information says of one function.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_GNU_all_call_sites, DW_AT_abstract_origin, DW_AT_artificial, DW_AT_call_all_calls,
    DW_AT_call_all_tail_calls, DW_AT_calling_convention, DW_AT_frame_base, DW_AT_prototyped,
    DW_AT_specification, DW_AT_type, Operation, constants as dw,
};

use crate::signatures::aggregates::OtherTypes;
use crate::signatures::classes::ByteClass;
use crate::signatures::entry::Said;
use crate::signatures::model::{Pointee, Shape, Type};
use crate::signatures::types::{Types, scalar};
use crate::signatures::units::{Die, Entry, Producer, Unit, Units};

/// How many entries can say something of one function: the code, the abstract function, its declaration in a class.
const CHAIN_MAX: usize = 8;
/// The number of parameters above which a function is not read.
const PARAMETERS_MAX: usize = 1024;

/// A function as debug information has it.
pub(crate) struct Subprogram {
    pub(crate) parameters: Vec<Raw>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) language: Option<gimli::DwLang>,
    /// The compiler that has made its code.
    pub(crate) producer: Producer,
    /// The type of its result.
    pub(crate) result: Arc<Type>,
    pub(crate) is_variadic: bool,
    /// Whether it was declared with the types of its parameters.
    pub(crate) is_prototyped: bool,
    /// Whether it is said to have another calling convention, or has parameters that the source does not have.
    pub(crate) is_unusual: bool,
    /// Whether the compiler is said to have changed its parameters or its result.
    pub(crate) is_changed: bool,
    /// Whether the compiler may have optimised it.
    pub(crate) is_optimised: bool,
}

/// A parameter as debug information has it.
pub(crate) struct Raw {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) ty: Arc<Type>,
    pub(crate) is_artificial: bool,
    /// Where it is said to be at the entry.
    pub(crate) said: Said,
}

impl Subprogram {
    /// Reads the function with this entry, whose code begins at `at`.
    pub(crate) fn read<'s>(
        types: &mut Types,
        units: &mut Units<'s>,
        die: Die,
        at: u64,
    ) -> Option<Subprogram> {
        let mut function = Subprogram {
            parameters: Vec::new(),
            result: Arc::new(Type::void()),
            name: None,
            language: None,
            producer: Producer::Gcc,
            is_variadic: false,
            is_prototyped: false,
            is_unusual: false,
            is_changed: false,
            is_optimised: true,
        };
        let mut own = Children::read(units, die)?;
        let mut source = None;
        let mut base = None;
        let mut has_result = false;
        let mut next = Some(die);
        for step in 0..CHAIN_MAX {
            let Some(here) = next else { break };
            let (unit, entry) = units.entry(here)?;
            if step == 0 {
                function.is_optimised = is_optimised(&unit, &entry);
                function.producer = unit.producer;
                base = frame_base(&unit, &entry).and_then(|base| base.above_cfa());
            }
            // With link-time optimisation, the code is in another unit than the source.
            function.language = unit.language.or(function.language);
            function.name = function.name.or_else(|| units.name(&unit, &entry));
            if !has_result && entry.has_attr(DW_AT_type) {
                has_result = true;
                function.result = types.of(units, here.unit, &entry);
            }
            function.is_prototyped |= entry.has_attr(DW_AT_prototyped);
            function.is_unusual |= match entry.attr_value(DW_AT_calling_convention) {
                None => false,
                Some(AttributeValue::CallingConvention(dw::DW_CC_nocall)) => {
                    function.is_changed = true;
                    false
                }
                Some(AttributeValue::CallingConvention(convention)) => {
                    let usual = [dw::DW_CC_normal, dw::DW_CC_program, dw::DwCc(0xc2)];
                    !usual.contains(&convention)
                }
                Some(_) => true,
            };
            let origin = entry.attr_value(DW_AT_abstract_origin);
            let is_instance = origin.is_some();
            let declaration = || entry.attr_value(DW_AT_specification);
            next = units.referred(here.unit, origin.or_else(declaration)).filter(|&to| to != here);
            if is_instance && next.is_none() {
                return None;
            }
            // The code of an abstract function has its parameters, but perhaps not all.
            if is_instance {
                source = next;
            }
        }
        let abstract_ = source.and_then(|source| Children::read(units, source));
        function.is_variadic =
            own.is_variadic || abstract_.as_ref().is_some_and(|abstract_| abstract_.is_variadic);
        let unit = units.unit(die.unit)?;
        match abstract_.zip(source).filter(|(abstract_, _)| !abstract_.parameters.is_empty()) {
            Some((abstract_, source)) => {
                let mut instances: HashMap<Die, Entry<'s>> = HashMap::new();
                for parameter in own.parameters.drain(..) {
                    match units.referred(die.unit, parameter.attr_value(DW_AT_abstract_origin)) {
                        Some(origin) => drop(instances.insert(origin, parameter)),
                        None => function.is_unusual = true,
                    }
                }
                for parameter in &abstract_.parameters {
                    let of = Die { unit: source.unit, offset: parameter.offset() };
                    let instance = instances.remove(&of);
                    let said = |units: &Units<'s>, ty: &Type| match &instance {
                        Some(instance) => Said::of(units, &unit, instance, at, base, ty),
                        None => Said::Nothing,
                    };
                    function.add(types, units, source.unit, parameter, said);
                }
                // Parameters that only the code has, such as that of a constructor for virtual base classes.
                function.is_unusual |= !instances.is_empty();
            }
            None => {
                for parameter in &own.parameters {
                    let said = |units: &Units<'s>, ty: &Type| Said::of(units, &unit, parameter, at, base, ty);
                    function.add(types, units, die.unit, parameter, said);
                }
            }
        }
        Some(function)
    }

    /// Returns a function in C++.
    #[cfg(test)]
    pub(crate) fn of(result: Type, parameters: Vec<Raw>) -> Subprogram {
        Subprogram {
            parameters,
            name: None,
            language: None,
            producer: Producer::Gcc,
            result: Arc::new(result),
            is_variadic: false,
            is_prototyped: false,
            is_unusual: false,
            is_changed: false,
            is_optimised: true,
        }
    }

    fn add<'s>(
        &mut self,
        types: &mut Types,
        units: &mut Units<'s>,
        unit: usize,
        entry: &Entry<'s>,
        said: impl FnOnce(&Units<'s>, &Type) -> Said,
    ) {
        let ty = types.of(units, unit, entry);
        let said = said(units, &ty);
        let is_artificial = entry.has_attr(DW_AT_artificial);
        // The functions of a string are also called while it is being made, or has gone.
        let is_string = matches!(ty.shape, Shape::Pointer(Pointee::String(_)));
        let ty = match is_artificial && is_string {
            true => Arc::new(scalar(8, Shape::Pointer(Pointee::Other), ByteClass::Integer)),
            false => ty,
        };
        let name = units.unit(unit).and_then(|unit| units.name(&unit, entry));
        // Other code has all parameters in its frame.
        self.is_optimised |= matches!(said, Said::Register(_) | Said::Pair(..) | Said::Pieces(_));
        self.parameters.push(Raw { name, ty, is_artificial, said });
    }
}

/// The parameters among the entries below that of a function.
struct Children<'s> {
    parameters: Vec<Entry<'s>>,
    is_variadic: bool,
}

impl<'s> Children<'s> {
    fn read(units: &mut Units<'s>, die: Die) -> Option<Children<'s>> {
        let unit = units.unit(die.unit)?;
        let mut found = Children { parameters: Vec::new(), is_variadic: false };
        let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            let child = child.entry();
            match child.tag() {
                dw::DW_TAG_formal_parameter if found.parameters.len() < PARAMETERS_MAX => {
                    found.parameters.push(child.clone());
                }
                dw::DW_TAG_formal_parameter => return None,
                dw::DW_TAG_unspecified_parameters => found.is_variadic = true,
                _ => {}
            }
        }
        Some(found)
    }
}

/// What a function's frame is found by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameBase {
    Cfa,
    /// rbp, as the first instructions set it: below it are the return address and the caller's rbp.
    FramePointer,
    Other,
}

impl FrameBase {
    /// Returns the distance from the CFA to the base.
    fn above_cfa(self) -> Option<i64> {
        match self {
            FrameBase::Cfa => Some(0),
            FrameBase::FramePointer => Some(-16),
            FrameBase::Other => None,
        }
    }
}

fn frame_base<'s>(unit: &Unit<'s>, entry: &Entry<'s>) -> Option<FrameBase> {
    let Some(AttributeValue::Exprloc(base)) = entry.attr_value(DW_AT_frame_base) else { return None };
    let mut operations = base.operations(unit.unit.encoding());
    /// DWARF's number of rbp.
    const RBP: gimli::Register = gimli::Register(6);
    Some(match operations.next().ok()?? {
        Operation::CallFrameCFA => FrameBase::Cfa,
        Operation::Register { register: RBP } => FrameBase::FramePointer,
        _ => FrameBase::Other,
    })
}

/// Whether a function may be optimised. LLVM's compilers say of optimised functions that they list all calls in them, and others
/// have a frame pointer.
fn is_optimised<'s>(unit: &Unit<'s>, entry: &Entry<'s>) -> bool {
    let lists_calls = [DW_AT_call_all_calls, DW_AT_call_all_tail_calls, DW_AT_GNU_all_call_sites];
    let lists_calls = lists_calls.iter().any(|&name| entry.has_attr(name));
    lists_calls || frame_base(unit, entry) != Some(FrameBase::FramePointer)
}
