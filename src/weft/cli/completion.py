"""`weft completion`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from weft.cli.help import Sectioned

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_WEFT_COMPLETE"  # which the shell sets when it asks


@click.command("completion", cls=Sectioned)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion for bash (4.4 or newer), zsh or fish.

    \b
      $ weft completion bash >> ~/.bashrc
      $ weft completion zsh >> ~/.zshrc
      $ weft completion fish > ~/.config/fish/completions/weft.fish

    In a new shell the Tab key then completes commands, options, schedules, their variants,
    models, devices and files:

    \b
      $ weft draw zb<Tab>
      zb-h1  zb-h2  zbv
    """
    known = get_completion_class(shell)
    assert known is not None
    script = known(context.find_root().command, {}, "weft", VARIABLE)
    click.echo(script.source_template % script.source_vars())
