"""The group of commands: loads each when it is called, and ends every run with its status."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from weft.cli.status import OutputClosed, status_of

HELP = """Pipeline-parallel schedules as programs: proved, timed, drawn, trained and exported.

\b
  weft train                             train a small GPT in four processes
  weft profile                           measure what that costs, as a file for --cost
  weft list                              list the schedules
  weft draw 1f1b -d 4 -n 8               draw one as a timeline
  weft draw 1f1b -d 4 -n 8 -o x.svg      draw it for a paper; x.png for a slide
  weft explain 1f1b -d 4 -n 8            explain where its time goes, and what would help
  weft compare -d 4 -n 8                 rank all of them
  weft simulate zbv -d 8 -n 32 --json    figures, for a script
  weft simulate 1f1b -d 8 -n 24 --model gpt-6.2b --device a100
                                         in seconds and bytes, of a model on a device

Every command has examples in its --help.

Exit status: 0 done, 1 a program breaks a rule, 2 the input makes no sense.
"""


class Group(click.Group):
    """Finds the command `name` in the file `weft.cli.name`."""

    def __init__(self, summaries: Mapping[str, str]) -> None:
        super().__init__(
            name="weft",
            help=HELP,
            callback=_help_alone,
            invoke_without_command=True,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._summaries:
            return None
        command = import_module(f"weft.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest command where there is none of that name."""
        near = get_close_matches(args[0], self._summaries, n=1)
        if args[0] not in self._summaries and near:
            raise click.UsageError(f"No such command {args[0]!r}; did you mean {near[0]}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, without loading the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Click ends a broken pipe with status 1, which means something else here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise OutputClosed from None

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line and exit; one message says what went wrong."""
        extra |= {"prog_name": "weft", "standalone_mode": False}
        sys.exit(status_of(lambda: super(Group, self).main(*args, **extra)))


def _help_alone() -> None:
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
