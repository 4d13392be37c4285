//! Makes the plan for a program: analyses its control flow, decides how each function is hooked, and emits
//! machine code. Deciding and emitting are repeated until everything that was decided could be emitted.

use crate::blocks::copies::{Copies, Wanted};
use crate::blocks::uncounted::Uncounted;
use crate::decide::decisions::{Decisions, LeftOut, decide};
use crate::decide::hook::Hook;
use crate::decide::options::{Hooks, Means, Options, Told};
use crate::decide::standalone::Standalone;
use crate::decide::system_calls::{Purpose, SystemCalls};
use crate::decide::thunk_spec::{Circumstances, Exits};
use crate::decide::uncalled::Uncalled;
use crate::decide::verdict::{Earlier, Failed, Reason, Tactic, Verdict};
use crate::decide::{
    agents, flags, foreign, go, own_text, runtime_code, shared, shortcuts, stack_copiers, tails, thunk_spec,
    unwinder,
};
use crate::emit::arena::emit;
use crate::emit::emitted::Emitted;
use crate::emit::homes::Homes;
use crate::emit::layout::Input;
use crate::emit::patch::{recursions, removals};
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::falls::{self, Fall};
use crate::plan::{Plan, SEVERAL, TailSite, code_extents, extents};
use crate::x86::template::kind::{Measured, Role};
use gprofinject_abi::plan::{CodeRange, Patch, SHARED, Stay};
use gprofinject_image::{Image, sort};
use std::collections::{HashMap, HashSet};

impl Plan {
    /// Plans the hooks for a program. The plan depends on nothing but the arguments: it is the same on every
    /// machine.
    pub fn new(image: &Image, options: &Options) -> Plan {
        Plan::with(image, options, None)
    }

    /// Plans the hooks. Exits are not hooked if `entries_because` says why.
    fn with(image: &Image, options: &Options, entries_because: Option<String>) -> Plan {
        let role = options.role;
        let reader = own_text::reader(image, role);
        let runtime = runtime_code::reader(image, role);
        let none = match &reader {
            _ if runtime.is_some() => Some(Reason::RuntimeCode),
            Some(_) if !options.insist => Some(Reason::OwnText),
            _ => None,
        };
        let downgrade = entries_because
            .or_else(|| runtime.map(str::to_owned))
            .or_else(|| downgrade(image, options, none, reader.as_deref()));
        let entry_only = options.hooks == Hooks::Entry || options.shadow_stack || downgrade.is_some();
        // Where a runtime forbids exit hooks, no function gets one (see `refuse` in `decide::decisions`), so
        // what functions do with their return addresses matters only if basic blocks are counted.
        let exits =
            !entry_only || image.facts.runtime.is_none() || options.counted.is_some() || options.clock;
        let flow = Flow::of(image, exits);
        let is_standalone = role.is_standalone();
        let mut system_calls = match role {
            Role::Standalone | Role::StandaloneLibrary => SystemCalls::of(image, &flow),
            Role::Program => SystemCalls::that_can_be_redirected(image, &flow),
            Role::Library => SystemCalls::default(),
        };
        let standalone =
            if is_standalone { Standalone::of(image, !entry_only) } else { Standalone::default() };
        let stack_copiers = if image.facts.go { Vec::new() } else { stack_copiers::all(image) };
        let selection = options.selection();
        // Nobody outside of the module knows the address of such a function.
        let outermost = options.outermost;
        let is_inner = |i: usize| outermost && !flow.is_taken(image.functions[i].address);
        let chosen = |i: usize| {
            selection.left_out(&image.functions[i]).or_else(|| is_inner(i).then_some(Reason::Inner))
        };
        // If the user wants no function of a program at all, the unwinder meets no hook. A library may meet those of the
        // program.
        let any = (0..image.functions.len()).any(|i| chosen(i).is_none());
        if any && !role.is_library() && none.is_none() {
            go::resumption(image).into_iter().for_each(|place| system_calls.add(place));
        }
        let needs = is_standalone && (any || role.is_library());
        let left_out = |i: usize| {
            let is_needed = needs && standalone.is_needed(image, i)
                || any && go::is_needed(image, i)
                || (any || role.is_library()) && stack_copiers.contains(&i);
            chosen(i).filter(|_| !is_needed)
        };
        // Copies of functions would leave return addresses in the arena, where such a runtime does not find them; and some of
        // their calls leave the original ones, which are not in a shadow stack.
        let copies = image.facts.runtime.is_none() && !options.shadow_stack;
        let counted = options.counted.filter(|_| copies);
        let counted = counted.map(|counted| move |i: usize| counted(&image.functions[i]));
        let counted = counted.as_ref().map(|counted| counted as &dyn Fn(usize) -> bool);
        let wanted = Wanted { counted, clock: options.clock && copies };
        let falls = falls::all(image, &flow);
        let told = options.told.filter(|_| options.measured == Measured::Chosen);
        let told: Vec<Told> = told.map_or(Vec::new(), |told| image.functions.iter().map(told).collect());
        let task = Task {
            image,
            flow: &flow,
            means: options.means(),
            role,
            exits: match (entry_only, options.measured) {
                (true, _) => Exits::Few,
                (false, Measured::None | Measured::Chosen) => Exits::Needed,
                (false, Measured::All | Measured::Long) => Exits::All,
                (false, Measured::Outer) => Exits::Outer,
            },
            wanted,
            system_calls: &system_calls,
            standalone: &standalone,
            stack_copiers: &stack_copiers,
            arena: options.arena,
            // Where no exits are hooked, the arguments of calls can be kept all the same.
            measured: match options.measured {
                Measured::All | Measured::Outer | Measured::Long if entry_only => Measured::None,
                measured => measured,
            },
            told: &told,
            falls: &falls,
            outermost: options.outermost,
        };
        let Decided { verdicts, hooks, mut emitted, homes, copies } = if let Some(reason) = none {
            let verdicts = vec![Err(reason); image.functions.len()];
            let decisions = Decisions { verdicts, hooks: Vec::new() };
            Decided::emit(task, decisions)
        } else {
            Decided::that_can_be_emitted(task, &left_out)
        };
        if needs && !entry_only && none.is_none() && !role.is_library() {
            let forbidden = standalone.forbids_exits(image, &hooks);
            if forbidden.is_some() {
                return Plan::with(image, options, forbidden);
            }
        }
        emitted.unredirected.extend_from_slice(&system_calls.unredirected);
        emitted.unredirected.sort_unstable();
        let is_redirected = |at: &u64| emitted.unredirected.binary_search(at).is_err();
        let calls = system_calls.redirected.iter().filter(|call| call.purpose != Purpose::Resume);
        let redirected = calls.map(|call| call.at).filter(is_redirected).collect();
        let mut number_of = vec![u32::MAX; image.functions.len()];
        for (hook, number) in hooks.iter().zip(0..) {
            number_of[hook.function] = number;
        }
        let mut more = removals(image, &hooks, &copies);
        if !outermost {
            more.extend(recursions(image, &flow, &hooks, &emitted, &copies));
        }
        emitted.add_patches(more);
        spread_stay(&hooks, &mut emitted.patches);
        emitted.code.write_words(options.words);
        for (record, is_shared) in emitted.records.iter_mut().zip(shared::of_all(&hooks)) {
            record.flags |= if is_shared { SHARED } else { 0 };
        }
        let caution = reader
            .filter(|_| none.is_none())
            .map(|why| format!("{why}, and finds hooks there"))
            .or_else(|| stack_copiers::caution(image, &stack_copiers, &hooks, entry_only))
            .or_else(|| far(&verdicts));
        Plan {
            hooks: if entry_only { Hooks::Entry } else { Hooks::Both },
            nameless_parts: image
                .nameless_parts()
                .iter()
                .map(|&(part, function)| [part as u32, function as u32])
                .collect(),
            downgrade,
            caution,
            records: std::mem::take(&mut emitted.records).into(),
            function_of: hooks.iter().map(|h| h.function as u32).collect(),
            text: extents(image),
            arena: emitted.code.arena,
            words: options.words,
            arena_len: emitted.code.bytes.len() as u64,
            slot_bytes: homes.bytes,
            arena_owners: std::mem::take(&mut emitted.owners).into(),
            tail_sites: tail_sites(image, &flow, &hooks, &number_of).into(),
            moved: std::mem::take(&mut emitted.moved).into(),
            hooked: hooked_ranges(image, &verdicts, &emitted),
            code: code_extents(image),
            entry: image.entry,
            phdr: image.phdr,
            hook_points: hook_points(&hooks).into(),
            hooks_removed: image.facts.hooks_removed,
            engine: options.engine,
            role,
            small_stacks: image.facts.go,
            measured: task.measured,
            outermost,
            falls,
            resumes: emitted.resumes,
            verdicts: verdicts
                .into_iter()
                .map(|v| v.map_or_else(Verdict::Refused, Verdict::Hooked))
                .collect(),
            originals: match image.facts.go {
                true => std::mem::take(&mut emitted.originals),
                false => copies.originals().into_iter().map(|(at, ip)| (emitted.copies + at, ip)).collect(),
            },
            redirected,
            uses_gs: system_calls.uses_gs.filter(|_| !role.is_library() && (is_standalone || wanted.any())),
            unredirected: std::mem::take(&mut emitted.unredirected),
            copies,
            patches: std::mem::take(&mut emitted.patches).into(),
            emitted,
            file: None,
        }
    }
}

/// Returns why the plan makes fewer hooks than the user asked for, as text for the user, or `None` if it
/// makes all of them.
fn downgrade(image: &Image, options: &Options, none: Option<Reason>, reader: Option<&str>) -> Option<String> {
    let asked = options.hooks;
    match &image.facts.runtime {
        _ if none.is_some() => {
            reader.map(|why| format!("{why}: it is only sampled; --hooks both hooks it all the same"))
        }
        Some(runtime) if asked == Hooks::Both => {
            Some(format!("its runtime ({runtime}) relies on true return addresses: only entries are hooked"))
        }
        _ if options.shadow_stack && asked == Hooks::Both => Some(SHADOWED.to_owned()),
        _ => None,
    }
}

/// Why exits are not hooked in a process with a shadow stack, as text for the user.
const SHADOWED: &str = "the processor keeps its return addresses in a shadow stack (SHSTK): only entries are hooked; \
                        GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK starts it without one";

/// Returns what the user has to know if the arena does not reach all functions, as text.
fn far(verdicts: &[Result<Tactic, Reason>]) -> Option<String> {
    let count = verdicts.iter().filter(|verdict| **verdict == Err(Reason::Far)).count();
    let functions = if count == 1 { "function is" } else { "functions are" };
    (count > 0).then(|| {
        format!("{count} {functions} not hooked, because hooks reach 2 GiB and its code or data takes more (see --list)")
    })
}

/// What is decided and emitted.
#[derive(Clone, Copy)]
struct Task<'a, 'd> {
    image: &'a Image<'d>,
    flow: &'a Flow,
    means: Means,
    role: Role,
    exits: Exits,
    /// Which functions are copied.
    wanted: Wanted<'a>,
    system_calls: &'a SystemCalls,
    standalone: &'a Standalone,
    /// The functions that copy parts of the stack.
    stack_copiers: &'a [usize],
    arena: Option<u64>,
    /// Which calls are measured.
    measured: Measured,
    /// Which functions tell the agent about their calls: see [`Options::told`].
    told: &'a [Told],
    /// See [`falls::all`].
    falls: &'a [Fall],
    /// Whether only calls from outside of the module are counted.
    outermost: bool,
}

/// One attempt: a set of decisions, and the output of emission for it.
struct Decided {
    verdicts: Vec<Result<Tactic, Reason>>,
    hooks: Vec<Hook>,
    emitted: Emitted,
    homes: Homes,
    copies: Copies,
}

impl Decided {
    /// Emits the hooks and, if basic blocks are counted, the copies. If a function turns out not to be
    /// copyable, everything is emitted again without its copy.
    fn emit(task: Task, decisions: Decisions) -> Decided {
        let Task { image, flow, role, wanted, .. } = task;
        let Decisions { verdicts, hooks } = decisions;
        let own = task.system_calls.redirected.iter().filter_map(|call| call.function);
        let mut failed: HashMap<usize, Uncounted> =
            own.map(|function| (function, Uncounted::SystemCall)).collect();
        loop {
            let copies = match wanted.any() {
                true => Copies::new(image, flow, &hooks, role, wanted, &failed),
                false => Copies::default(),
            };
            let (mut emitted, homes) = emit_all(task, &hooks, &copies);
            if emitted.uncounted.is_empty() {
                return Decided { verdicts, hooks, emitted, homes, copies };
            }
            failed.extend(emitted.uncounted.drain(..));
        }
    }

    /// Decides and emits, repeatedly, until every hook could be emitted.
    ///
    /// A hook that cannot be emitted is not simply dropped, because other hooks depend on it: their caves may
    /// lie in bytes that its relocation would have freed, their call sites may be among the instructions that
    /// it would have moved, or their sleds may lead into its patch. Therefore everything is decided again
    /// without it.
    fn that_can_be_emitted(task: Task, left_out: &LeftOut) -> Decided {
        /// The largest number of attempts. Compiled programs need at most two.
        const ROUNDS: u32 = 20;
        let Task { image, flow, means, role, exits, wanted, system_calls, .. } = task;
        let mut failed = if exits == Exits::Few { Failed::new() } else { unwinder::steps(image, flow) };
        // A function that returns a condition keeps its flags if it needs no exit, also where calls are measured.
        failed.extend(flags::passed(image, flow, if exits.are_measured() { Exits::Needed } else { exits }));
        failed.extend(go::entered_otherwise(image));
        failed.extend(system_calls.compared());
        failed.extend(runtime_code::parts(image, flow));
        failed.extend(runtime_code::copied(image));
        match role {
            Role::Library => failed.extend(agents::needs(image, flow)),
            Role::StandaloneLibrary => failed.extend(agents::needed_of_musl(image)),
            Role::Standalone => failed.extend(agents::starts_of_contexts(image)),
            Role::Program => failed.extend(agents::needed_of_program(image, flow)),
        }
        let mut earlier = Earlier { failed, unredirected: HashSet::new() };
        for _ in 0..ROUNDS {
            let mut decisions = decide(image, flow, left_out, means, &earlier);
            // A branch can be redirected only if the function that contains the branch has no copy, because
            // the copy would still lead to the old target.
            let in_the_way = system_calls.in_the_way_of(&decisions.hooks);
            if !in_the_way.is_empty() {
                earlier.failed.extend(in_the_way);
                continue;
            }
            let astray = foreign::settle(image, flow, &mut decisions.hooks, !wanted.any());
            if !astray.is_empty() {
                earlier.unredirected.extend(astray);
                continue;
            }
            let decided = Decided::emit(task, decisions);
            let overlapping = if decided.emitted.overlaps() { overlaps(&decided.hooks) } else { Vec::new() };
            let failed = &mut earlier.failed;
            failed.extend(overlapping.iter().map(|&function| (function, Reason::Overlap)));
            if decided.emitted.failed.is_empty() && overlapping.is_empty() {
                return decided;
            }
            let by_frida = |i| decided.verdicts[i] == Ok(Tactic::Frida);
            let reason = |i, other| if by_frida(i) { Reason::FridaNotRelocatable } else { other };
            failed.extend(decided.emitted.failed.iter().map(|&(i, other)| (i, reason(i, other))));
        }
        let verdicts = decide(image, flow, left_out, means, &earlier).verdicts;
        let verdicts = verdicts.into_iter().map(|v| v.and(Err(Reason::NotRelocatable))).collect();
        let decisions = Decisions { verdicts, hooks: Vec::new() };
        Decided::emit(task, decisions)
    }
}

/// Emits the machine code for one set of decisions. Returns it with the home slots, in which arcs are
/// counted.
fn emit_all(task: Task, hooks: &[Hook], copies: &Copies) -> (Emitted, Homes) {
    let Task {
        image,
        flow,
        role,
        exits,
        system_calls,
        standalone,
        stack_copiers,
        arena,
        measured,
        told,
        falls,
        outermost,
        ..
    } = task;
    let mut through_agent = unwinder::through_agent(image, flow, hooks, role);
    through_agent.extend(standalone.through_agent(hooks));
    through_agent.extend(go::through_agent(image, hooks));
    through_agent.extend(stack_copiers::through_agent(stack_copiers, hooks));
    let conditions = match exits {
        Exits::All | Exits::Outer => flags::passed(image, flow, exits),
        Exits::Needed if !told.is_empty() => flags::passed(image, flow, Exits::All),
        Exits::Few | Exits::Needed => Failed::new(),
    };
    let returns_condition = |function: usize| conditions.contains_key(&function);
    let circumstances = Circumstances { counted: task.wanted.any(), outermost, falls };
    let specs = thunk_spec::of_all(
        image,
        flow,
        hooks,
        (exits, told),
        &through_agent,
        circumstances,
        &returns_condition,
    );
    // A jump within the module is no call from outside.
    let tails = if outermost { Vec::new() } else { tails::find(image, flow, hooks, &specs) };
    let shortcuts = if outermost { shortcuts::find(image, flow, hooks) } else { Vec::new() };
    let uncalled = Uncalled::of(image, flow, hooks, &specs, &tails, falls);
    let homes = Homes::new(image, flow, role, hooks, &tails, copies);
    let emitted = emit(Input {
        role,
        image,
        hooks,
        specs: &specs,
        homes: &homes,
        tails: &tails,
        uncalled: &uncalled,
        through_agent: &through_agent,
        system_calls: &system_calls.redirected,
        measured,
        arena,
        copies,
        outermost,
        shortcuts: &shortcuts,
    });
    (emitted, homes)
}

/// Returns the functions whose patches touch the same bytes. The tactics avoid such overlaps; this check
/// verifies that.
fn overlaps(hooks: &[Hook]) -> Vec<usize> {
    let mut spans: Vec<(u64, u64, usize)> = Vec::new();
    for h in hooks {
        spans.extend(h.spans().map(|(lo, hi)| (lo, hi, h.function)));
    }
    sort::by_key(&mut spans, |&(lo, ..)| lo);
    let mut bad: Vec<usize> = Vec::new();
    let mut last: Option<(u64, usize)> = None;
    for &(lo, hi, function) in &spans {
        if let Some((end, other)) = last
            && lo < end
        {
            bad.extend([function, other]);
        }
        if last.is_none_or(|(end, _)| hi > end) {
            last = Some((hi, function));
        }
    }
    bad
}

/// Lets the patches of a hook stay while hooks are paused ([`Stay`]) if those of another one that stay rely on them: they
/// lie in bytes that the hook has freed, or a sled leads to the hook. The hooks are sorted by address.
fn spread_stay(hooks: &[Hook], patches: &mut [Patch]) {
    let stays = Stay::Function.code();
    let is_in = |patch: &Patch, hook: &Hook| hook.spans().any(|(lo, hi)| (lo..hi).contains(&patch.address));
    let marked: Vec<u64> =
        patches.iter().filter(|patch| patch.stays == stays).map(|patch| patch.address).collect();
    if marked.is_empty() {
        return;
    }
    let has_marked = |hook: &Hook| hook.spans().any(|(lo, hi)| marked.iter().any(|at| (lo..hi).contains(at)));
    let mut new: Vec<usize> = (0..hooks.len()).filter(|&n| has_marked(&hooks[n])).collect();
    let mut staying: HashSet<usize> = new.iter().copied().collect();
    while let Some(n) = new.pop() {
        let owner = |at: u64| {
            let after = hooks.partition_point(|hook| hook.at <= at);
            let before =
                after.checked_sub(1).filter(|&before| at < hooks[before].at + hooks[before].relocated);
            before.filter(|&before| before != n)
        };
        let next = hooks[n].sled.and_then(|sled| hooks.iter().position(|hook| hook.function == sled.next));
        // The originals of such branches lead into bytes that stay overwritten.
        let branches = hooks[n].retargets.iter().filter(|r| r.moved).map(|r| r.branch.site);
        let others = hooks[n].spans().map(|(lo, _)| lo).chain(branches).filter_map(owner);
        for other in others.chain(next) {
            if staying.insert(other) {
                new.push(other);
            }
        }
    }
    for patch in patches.iter_mut().filter(|patch| patch.stays == Stay::Not.code()) {
        if staying.iter().any(|&n| is_in(patch, &hooks[n])) {
            patch.stays = stays;
        }
    }
}

/// Returns the sorted addresses at which hooks overwrite something.
fn hook_points(hooks: &[Hook]) -> Vec<u64> {
    let overwrite = hooks.iter().filter(|h| h.tactic != Tactic::CallSites);
    let mut points: Vec<u64> = overwrite.map(|h| h.at).collect();
    points.sort_unstable();
    points
}

/// Returns the ranges in which a return address belongs to hooked code: the hooked functions with their cold
/// parts, and the copies.
fn hooked_ranges(image: &Image, verdicts: &[Result<Tactic, Reason>], emitted: &Emitted) -> Vec<CodeRange> {
    let mut ranges: Vec<CodeRange> = Vec::new();
    // The start of the last function before the current one that is not hooked.
    let mut other = None;
    for (i, f) in image.functions.iter().enumerate() {
        // Calls by inner functions have no hooked frames, like those by other functions that were called from inside.
        let hooked = verdicts.get(image.owner(i)).is_some_and(|v| v.is_ok() || *v == Err(Reason::Inner));
        if !hooked {
            other = Some(f.address);
            continue;
        }
        // If a call ends the function, its return address is the first byte after the function.
        let (lo, hi) = (f.address + 1, f.address + f.size + 1);
        match ranges.last_mut() {
            Some(last) if last.hi + 16 >= lo && other.is_none_or(|other| other + 1 < last.hi) => last.hi = hi,
            _ => ranges.push(CodeRange { lo, hi }),
        }
    }
    let arena = &emitted.code;
    let copies = emitted.copies as usize;
    if copies < arena.bytes.len() {
        ranges.push(CodeRange { lo: arena.address(copies), hi: arena.address(arena.bytes.len()) });
        // The arena of a PIE may lie below address 0, so its addresses wrap to the top.
        ranges.sort_unstable_by_key(|r| r.lo);
    }
    ranges
}

/// Finds the jumps from one hooked function to the start of another: see [`Plan::tail_site`].
fn tail_sites(image: &Image, flow: &Flow, hooks: &[Hook], number_of: &[u32]) -> Vec<TailSite> {
    let mut sites: HashMap<(u32, u32), u64> = HashMap::new();
    for (hook, number) in hooks.iter().zip(0..) {
        let address = image.functions[hook.function].address;
        for b in flow.branches_into(hook.function, address + 1) {
            if b.kind == BranchKind::Call {
                continue;
            }
            let from = image.owner(b.function as usize);
            let caller = number_of[from];
            if caller != u32::MAX && from != hook.function {
                sites.entry((caller, number)).and_modify(|s| *s = SEVERAL).or_insert(b.site);
            }
        }
    }
    let site = |((caller, callee), address)| TailSite { caller, callee, address };
    let mut sites: Vec<TailSite> = sites.into_iter().map(site).collect();
    sites.sort_unstable_by_key(|site| (site.caller, site.callee));
    sites
}
