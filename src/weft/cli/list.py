"""`weft list`: which schedules, models and devices there are, and all about one of them."""

from __future__ import annotations

from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from weft.cli.help import Sectioned
from weft.cli.names import device_names, model_names, schedule_names
from weft.cli.options import as_json
from weft.cli.output import facts, show, show_json, table
from weft.cli.shelves import SHELVES
from weft.errors import InputError, UnknownSchedule

COMPLETIONS = {"schedules": schedule_names, "models": model_names, "devices": device_names}


def _kinds(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Completions of the first word: a kind, or a schedule."""
    kinds = [CompletionItem(kind) for kind in COMPLETIONS if kind.startswith(word)]
    return [*kinds, *schedule_names(context, parameter, word)]


def _names(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Completions of the second word: a thing of that kind."""
    complete = COMPLETIONS.get(context.params.get("kind") or "")
    return complete(context, parameter, word) if complete else []


@click.command("list", cls=Sectioned)
@click.argument("kind", required=False, metavar="[KIND]", shell_complete=_kinds)
@click.argument("name", required=False, shell_complete=_names)
@as_json
def command(kind: str | None, name: str | None, is_json: bool) -> None:
    """List every schedule, or of the KIND schedules, models or devices; or all about NAME.

    \b
      $ weft list zb-h1
      zb-h1: 1F1B with I and W apart: a third of the bubble at the same peak
      stages  1 on each device
      try     weft draw zb-h1 -d 4 -n 8

    \b
      $ weft list
      $ weft list models
      $ weft list devices h200

    Of a schedule: its paper, the time and peak that it claims, what it needs, its variants. Of
    a model: its sizes and what a microbatch takes. Of a device: its peak, memory and links.

    With --json, "model" and "device" are what the files of --model and --device hold: change
    one of these to describe your own.
    """
    kind, name = _asked(kind, name)
    shelf = SHELVES[kind]
    if name is not None:
        thing = shelf.find(name)
        if is_json:
            show_json(shelf.described(name, thing))
        else:
            show(shelf.title(name, thing), "", facts(shelf.page(name, thing)))
    elif is_json:
        show_json({kind: [shelf.described(*item) for item in shelf.things.items()]})
    else:
        show(table(shelf.columns, [shelf.line(*item) for item in shelf.things.items()]))
        show("", shelf.footer)


def _asked(kind: str | None, name: str | None) -> tuple[str, str | None]:
    """A word that is no kind names a schedule."""
    if kind is None or kind in SHELVES:
        return kind or "schedules", name
    near = get_close_matches(kind, SHELVES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if name is not None:
        raise InputError(f"{kind!r} is none of {', '.join(SHELVES)}{hint}")
    home = next((shelf for shelf in SHELVES if kind in SHELVES[shelf].things), None)
    if home in ("models", "devices"):
        raise InputError(f"{kind} is one of the {home}: weft list {home} {kind}")
    if home is None and near:
        raise UnknownSchedule(f"no schedule named {kind!r}{hint}")
    return "schedules", kind
