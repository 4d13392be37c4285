//! Reports before the program starts what will be less than the user may expect.

use crate::options::{Clock, EngineArg, HooksArg};
use crate::os::say::Level;
use crate::program::arguments::Known;
use crate::program::planned::Planned;
use crate::program::resolve::Program;
use crate::session::settings::Settings;
use gprofinject_image::Image;
use gprofinject_image::signatures::Unclear;
use gprofinject_plan::{Hooks, Verdict};

/// Reports of which functions of the program nothing is shown although the user wants it.
fn say_of_arguments(known: &Known, program: &Program, settings: &Settings) {
    let (voice, shown) = (settings.voice, program.binary.display());
    let option = if settings.measure.is_some_and(|measure| measure.values) { "--values" } else { "--args" };
    for name in &known.missing {
        voice.warn(format_args!("{option}: the debug information of {shown} has no enumeration {name}"));
    }
    if let Some((count, name)) = &known.missing_units {
        voice.note(format_args!(
            "the debug information of {shown} is in .dwo files, of which {} missing or of another build, such as {}: the arguments \
             of functions in them are shown as ?",
            gmon::counted(*count as u64, "is", "are"),
            name.display()
        ));
    }
    let is_all_unknown = known.fetches.is_empty() && !known.unclear.contains_key(&Unclear::Split);
    if is_all_unknown && known.unclear.contains_key(&Unclear::NoInformation) {
        voice.note(format_args!(
            "{shown} has no debug information, so the arguments of its functions are not shown: install its debug symbols, \
             or say what they are, as in {option} 'FUNCTION@arg1/i32,arg2/s,retval/i32'"
        ));
        return;
    }
    for (why, &functions) in &known.unclear {
        voice.detail(format_args!(
            "the arguments of {} of {shown} are not shown: {why}",
            gmon::counted(functions as u64, "function", "functions")
        ));
    }
}

/// Reports what cannot be hooked or sampled, and why.
pub(crate) fn say(planned: &Planned, program: &Program, settings: &Settings, sampled: bool) {
    let voice = settings.voice;
    let shown = program.binary.display();
    if let Some(why) = planned.unhookable() {
        let rest = if sampled { "it is only sampled" } else { "it runs without a profile" };
        voice.warn(format_args!("{shown} cannot be hooked: {why}; {rest}"));
    } else if settings.hooks != Some(HooksArg::None) && !planned.wants_libraries() {
        // A pattern may be for functions of libraries, which are known only later.
        for pattern in settings.filters.unused() {
            voice.warn(format_args!("{pattern} matches no function of {shown}"));
        }
    }
    if let Some(downgrade) = planned.plan.as_ref().and_then(|plan| plan.downgrade.as_ref()) {
        voice.note(format_args!("{shown}: {downgrade}"));
    }
    // Options may have chosen functions of libraries only.
    let has_libraries = planned.wants_libraries();
    let is_unmeasured = planned.plan.as_ref().is_some_and(|plan| {
        if plan.records.is_empty() { !has_libraries } else { plan.hooks == Hooks::Entry }
    });
    if settings.measure.is_some() && is_unmeasured {
        voice.warn(format_args!(
            "the calls of {shown} cannot be measured, because their ends are not seen; they are counted and sampled"
        ));
    }
    if let Some(known) = &planned.arguments {
        say_of_arguments(known, program, settings);
    }
    let runtime = planned.subject.image().and_then(|image| image.facts.runtime.as_ref());
    let executed = settings.measure.is_some_and(|measure| measure.clock == Clock::Instructions);
    let what = if executed { "instructions" } else { "basic blocks" };
    let copies = settings.filters.count().is_some() || executed;
    if copies && settings.shadow_stacks {
        voice.warn(format_args!(
            "{what} of {shown} are not counted: the processor's shadow stack (SHSTK) would not have the return addresses that this \
             leaves on the stack; GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK turns it off"
        ));
    } else if let Some(runtime) = runtime.filter(|_| copies) {
        voice.warn(format_args!(
            "{what} of {shown} are not counted: its runtime ({runtime}) would find return addresses that it does not know"
        ));
    }
    if let Some(caution) = planned.plan.as_ref().and_then(|plan| plan.caution.as_ref()) {
        voice.note(format_args!("{shown}: {caution}"));
    }
    let hooks_libraries = settings.hooks != Some(HooksArg::None) && settings.libs.wants_any();
    if settings.engine != EngineArg::Builtin && hooks_libraries && planned.subject.kind.unhookable().is_none()
    {
        voice.note("Frida hooks functions of the program, and none of its libraries; omit --engine to hook those too");
    }
    match planned.subject.profiling() {
        Some(_) if planned.subject.kind.unhookable().is_some() => voice.warn(format_args!(
            "{shown} was built with -pg: libc writes its own gmon.out at the end; name another with -o FILE"
        )),
        Some(profiling) if profiling.controls => voice.note(format_args!(
            "{shown} calls moncontrol or monstartup, which has no effect: all of the run is profiled"
        )),
        _ => {}
    }
    // The file's header names the program's entry point in any case.
    let is_known = |image: &Image| image.functions.addresses().any(|address| address != image.entry);
    let is_nameless = planned.subject.image().is_some_and(|image| !is_known(image));
    if planned.subject.stripped() && is_nameless {
        voice.note(format_args!(
            "{shown} is stripped and has no .eh_frame that describes its functions, so none of them can be hooked: install \
             its debug symbols, or profile a build with them"
        ));
    } else if planned.subject.stripped() {
        let text = match planned.wants_libraries() || planned.image().is_some() {
            true => {
                "its functions without names are shown by their addresses, unless its debug symbols are installed"
            }
            false => {
                "gprof needs symbols to show anything: install its debug symbols, or profile a build with them"
            }
        };
        let text = format!("{shown} is stripped: {text}");
        // Of a run, the summary says it if it matters.
        if settings.list { voice.note(text) } else { voice.detail(text) }
    }
    if voice.0 >= Level::Exhaustive {
        for (function, verdict) in planned.functions() {
            if let Verdict::Refused(reason) = verdict {
                voice.every(format_args!("{} is not hooked: {reason}", function.name));
            }
        }
    }
    if let Some(file) = planned.subject.debug_file {
        let within = if file.embedded { "the .gnu_debugdata of " } else { "" };
        let path = file.path.display();
        voice.detail(format_args!("{shown} is stripped; names of its functions from {within}{path}"));
    }
}
