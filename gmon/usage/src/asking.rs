//! Completions that ask the command itself for values that no definition has: the names in a file, and files of a kind.
//!
//! Each calls the command with [`ASK`] and the line that is typed ([`Line::parse`](crate::Line::parse)). If it prints nothing, clap's
//! completions are offered.

use clap::Command;

/// The first argument with which a shell calls the command.
pub const ASK: &str = "--complete";

/// Returns clap's completions for bash, in which the function `_NAME` first asks the command.
pub(crate) fn bash(command: &Command, completions: &str) -> String {
    let name = command.get_name();
    let own = completions.replacen(&format!("_{name}() {{"), &format!("_{name}_options() {{"), 1);
    format!(
        r#"{own}
# Names and files that only the command knows. It answers with what bash has to insert.
_{name}() {{
    mapfile -t COMPREPLY < <("${{1/#\~\//$HOME/}}" {ASK} bash "${{COMP_LINE:0:COMP_POINT}}" "$2" 2>/dev/null </dev/null)
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || _{name}_options "$@"
}}
"#
    )
}

/// Returns clap's completions for zsh, in which the function `_NAME` first asks the command.
pub(crate) fn zsh(command: &Command, completions: &str) -> String {
    let name = command.get_name();
    let own = completions.replacen(&format!("_{name}() {{"), &format!("_{name}_options() {{"), 1);
    let asking = format!(
        r#"# Names and files that only the command knows.
_{name}() {{
    local -a before found
    before=("${{(@Q)words[1,CURRENT-1]}}")
    found=("${{(@f)$("${{before[1]/#\~\//$HOME/}}" {ASK} words "${{before[@]}}" "${{(Q)PREFIX}}" 2>/dev/null </dev/null)}}")
    if [[ -n "$found[1]" ]]; then
        compadd -V values -a found
        return
    fi
    _{name}_options "$@"
}}

"#
    );
    // The end of the file calls the function if the file is that function's body.
    match own.rfind("if [ \"$funcstack[1]\"") {
        Some(end) => format!("{}{asking}{}", &own[..end], &own[end..]),
        None => own + &asking,
    }
}

/// Returns clap's completions for fish, in which values of some options are those that the command answers, and those without an option
/// are these or files.
pub(crate) fn fish(command: &Command, completions: &str) -> String {
    let name = command.get_name();
    let answers = format!("-xa '(__{name}_values; or __fish_complete_path (commandline -ct))'");
    // An option that has no values of its own, only files.
    let has_value = |line: &str| line.ends_with(" -r") || line.ends_with(" -r -F");
    let lines = completions.lines().map(|line| match has_value(line) {
        true => format!("{} {answers}\n", line.trim_end_matches(" -F").trim_end_matches(" -r")),
        false => format!("{line}\n"),
    });
    let own: String = lines.collect();
    let subcommands = command.get_subcommands().filter(|sub| sub.get_positionals().next().is_some());
    let names: Vec<&str> = subcommands.map(Command::get_name).collect();
    format!(
        r#"# Names and files that only the command knows. Without any, the status is 1.
function __{name}_values
    set -l before (commandline -opc)
    set -l typed (commandline -ct | string unescape 2>/dev/null; or commandline -ct)
    set -l found ($before[1] {ASK} words $before "$typed" 2>/dev/null </dev/null)
    test (count $found) -gt 0; or return 1
    printf '%s\n' $found
end
{own}complete -c {name} -n '__fish_seen_subcommand_from {}' -fka '(__{name}_values; or __fish_complete_path (commandline -ct))'
"#,
        names.join(" ")
    )
}
