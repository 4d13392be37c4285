//! Completions of a command that runs another one: what follows the other command's name is its own.
//!
//! clap's completions offer the options of the command wherever a word begins with a dash.

use clap::{ArgAction, Command};

/// Whether a command's last arguments are another command, to which they are passed on.
pub(crate) fn passes_on(command: &Command) -> bool {
    command.get_positionals().any(clap::Arg::is_trailing_var_arg_set)
}

/// Returns the options after which there is a word that belongs to them.
fn with_value(command: &Command) -> Vec<String> {
    let takes = |arg: &&clap::Arg| {
        let is_word = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        !arg.is_positional() && is_word && !arg.is_require_equals_set()
    };
    let options = command.get_arguments().filter(takes);
    let names = options.flat_map(|arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(arg.get_short().map(|short| format!("-{short}")))
    });
    names.collect()
}

/// Returns clap's completions for bash, in which the function `_NAME` first looks for the other command.
pub(crate) fn bash(command: &Command, completions: &str) -> String {
    let name = command.get_name();
    let own = completions.replacen(&format!("_{name}() {{"), &format!("_{name}_options() {{"), 1);
    let values = with_value(command).join("|");
    format!(
        r#"{own}
# What follows the name of the program is the program's own.
_{name}() {{
    local at prev="$3" is_program=0
    # bash parts a long option from its value.
    [[ "$prev" == "=" ]] && prev="${{COMP_WORDS[COMP_CWORD-2]}}"
    for (( at = 1; at < COMP_CWORD; at++ )); do
        case "${{COMP_WORDS[at]}}" in
            --)
                (( at++ ))
                is_program=1
                break
                ;;
            {values})
                [[ "${{COMP_WORDS[at+1]}}" == "=" ]] && (( at++ ))
                (( at++ ))
                ;;
            --*)
                [[ "${{COMP_WORDS[at+1]}}" == "=" ]] && (( at += 2 ))
                ;;
            -*)
                ;;
            *)
                break
                ;;
        esac
    done
    COMPREPLY=()
    if (( at < COMP_CWORD )); then
        # Without bash-completion, bash offers files.
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$at"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$at"
        fi
    elif (( at == COMP_CWORD )) && [[ $is_program == 1 || "$2" != -* ]]; then
        # The name of a program: a command, or a file, which bash offers if there is no command.
        [[ -n "$2" && "$2" != */* ]] && COMPREPLY=( $(compgen -c -- "$2") )
    else
        _{name}_options "$1" "$2" "$prev"
    fi
    return 0
}}
"#
    )
}

/// Returns clap's completions for zsh, in which options end at the first word that is none.
pub(crate) fn zsh(completions: &str) -> String {
    completions
        .replace("_arguments_options=(-s -S -C)", "_arguments_options=(-s -S -C -A '-*')")
        .replace("_arguments_options=(-s -C)", "_arguments_options=(-s -C -A '-*')")
}

/// Returns clap's completions for fish, of which each is for the words before the other command, and one for those after it.
pub(crate) fn fish(command: &Command, completions: &str) -> String {
    let name = command.get_name();
    let values = with_value(command).join(" ");
    let own = completions.replace(
        &format!("complete -c {name} "),
        &format!("complete -c {name} -n 'not __{name}_has_program' "),
    );
    format!(
        r#"# Whether the name of the program is there. What follows it is the program's own.
function __{name}_has_program
    set -l is_value 0
    for word in (commandline -opc)[2..-1]
        if test $is_value = 1
            set is_value 0
        else if contains -- $word {values}
            set is_value 1
        else if not string match -q -- '-*' $word; or test $word = --
            return 0
        end
    end
    return 1
end
{own}complete -c {name} -xa '(__fish_complete_subcommand -- {values})'
"#
    )
}
