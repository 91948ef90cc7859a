"""`brokerd completion`: the script that lets a shell complete the words of `brokerd`.

Calls:  click, which makes the scripts and answers them.
Never:  changes a file of the shell: the user decides where the script goes.
"""

import click
from click.shell_completion import get_completion_class

from brokerd.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_BROKERD_COMPLETE"
"""Variable by which a shell asks for completions: click's name for a program called brokerd."""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: bash (4.4 or newer), zsh or fish.

    \b
    bash:  brokerd completion bash > ~/.local/share/bash-completion/completions/brokerd
    zsh:   brokerd completion zsh > ~/.zfunc/_brokerd        (a directory of $fpath)
    fish:  brokerd completion fish > ~/.config/fish/completions/brokerd.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"there is no completion for {shell}", hint="bash, zsh or fish")
    root = context.find_root()
    click.echo(kind(root.command, {}, "brokerd", VARIABLE).source())
