//! `completion`: the script that completes commands, resource types and names by asking this program.

use crate::args::{Completion, Shell};
use std::io::Write;

pub fn run(out: &mut dyn Write, args: &Completion) -> anyhow::Result<()> {
    let script = match args.shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
    };
    out.write_all(script.as_bytes())?;
    Ok(())
}

const BASH: &str = r#"# Completion of klambda for bash.
# Install:
#   mkdir -p ~/.local/share/bash-completion/completions
#   klambda completion bash > ~/.local/share/bash-completion/completions/klambda
# For the current shell only:
#   source <(klambda completion bash)

_klambda() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$1" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _klambda klambda
"#;

const ZSH: &str = r#"#compdef klambda
# Completion of klambda for zsh.
# Install, then start a new shell:
#   klambda completion zsh > "${fpath[1]}/_klambda"
# For the current shell only:
#   source <(klambda completion zsh)

_klambda() {
    local -a candidates
    candidates=(${(f)"$(klambda __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#candidates} == 0 )); then
        _files
    elif (( ${#candidates} == 1 )) && [[ $candidates[1] == *[/=] ]]; then
        compadd -S '' -- $candidates
    else
        compadd -- $candidates
    fi
}
if [[ $funcstack[1] == _klambda ]]; then
    _klambda "$@"
else
    compdef _klambda klambda
fi
"#;

const FISH: &str = r#"# Completion of klambda for fish.
# Install:
#   klambda completion fish > ~/.config/fish/completions/klambda.fish
# For the current shell only:
#   klambda completion fish | source

function __klambda_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    klambda __complete -- $words "$current" 2>/dev/null
end
complete -c klambda -a '(__klambda_complete)'
"#;
