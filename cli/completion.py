"""``confidential-csi completion``: scripts by which shells complete the command line."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

_SHELLS: Final = ("bash", "zsh", "fish")
#: By it the script asks the command itself for completions (click, "Shell Completion").
_VARIABLE: Final = "_CONFIDENTIAL_CSI_COMPLETE"
_PROGRAM: Final = "confidential-csi"


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  source <(confidential-csi completion bash)       in ~/.bashrc
    zsh:   source <(confidential-csi completion zsh)        in ~/.zshrc, after compinit
    fish:  confidential-csi completion fish | source        in ~/.config/fish/config.fish
    """
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.ClickException(f"this version of click knows no completion for {shell}; update it")
    click.echo(completion_class(context.find_root().command, {}, _PROGRAM, _VARIABLE).source())
