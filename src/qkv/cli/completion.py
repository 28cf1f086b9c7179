"""`qkv completion`: the script with which a shell completes commands and options."""

from typing import Literal

from qkv.cli.shared import Json, print_result


def completion(shell: Literal["bash", "zsh", "fish"], /, *, json: Json = False) -> None:
    """Print the script with which bash, zsh or fish completes the commands and options of qkv.

    Examples:
        qkv completion bash > ~/.local/share/bash-completion/completions/qkv
        qkv completion zsh > ~/.zfunc/_qkv
        qkv completion fish > ~/.config/fish/completions/qkv.fish

    Parameters
    ----------
    shell
        bash, zsh or fish. For zsh, ~/.zshrc needs: fpath+=~/.zfunc; autoload -Uz compinit; compinit
    """
    from qkv.cli import make_app

    script = make_app([], with_run=True).generate_completion(prog_name="qkv", shell=shell)
    print_result(json, script, {"shell": shell, "script": script})
