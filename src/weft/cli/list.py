"""`weft list`: which schedules, models and devices there are, and all about one of them."""

from __future__ import annotations

from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from weft.cli.help import Sectioned
from weft.cli.listings import LISTINGS
from weft.cli.names import device_names, model_names, schedule_names
from weft.cli.options import as_json
from weft.cli.output import facts, show, show_json, table
from weft.errors import InputError, UnknownSchedule

COMPLETIONS = {"schedules": schedule_names, "models": model_names, "devices": device_names}


def _kinds(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Completions of the first word: a kind, or a schedule."""
    kinds = [CompletionItem(kind) for kind in COMPLETIONS if kind.startswith(word)]
    return [*kinds, *schedule_names(context, parameter, word)]


def _names(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Completions of the second word: an entry of that kind."""
    complete = COMPLETIONS.get(context.params.get("kind") or "")
    return complete(context, parameter, word) if complete else []


@click.command("list", cls=Sectioned)
@click.argument("kind", required=False, metavar="[KIND]", shell_complete=_kinds)
@click.argument("name", required=False, shell_complete=_names)
@as_json
def command(kind: str | None, name: str | None, is_json: bool) -> None:
    """List all schedules, or all models or devices (KIND), or describe the one called NAME.

    \b
      $ weft list zb-h1
      zb-h1: 1F1B with I and W apart: a third of the bubble at the same peak
      stages  1 on each device
      try     weft draw zb-h1 -d 4 -n 8

    \b
      $ weft list
      $ weft list models
      $ weft list devices h200

    For a schedule: its paper, the time and peak that it claims, what it needs, its variants. For
    a model: its sizes and what a microbatch takes. For a device: its peak, memory and links.

    With --json, "model" and "device" are in the form of the files that --model and --device
    read: change one to describe your own.
    """
    kind, name = _asked(kind, name)
    listing = LISTINGS[kind]
    if name is not None:
        entry = listing.find(name)
        if is_json:
            show_json(listing.described(name, entry))
        else:
            show(listing.title(name, entry), "", facts(listing.details(name, entry)))
    elif is_json:
        show_json({kind: [listing.described(*item) for item in listing.entries.items()]})
    else:
        show(table(listing.columns, [listing.row(*item) for item in listing.entries.items()]))
        show("", listing.footer)


def _asked(kind: str | None, name: str | None) -> tuple[str, str | None]:
    """A word that is not a kind names a schedule."""
    if kind is None or kind in LISTINGS:
        return kind or "schedules", name
    near = get_close_matches(kind, LISTINGS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if name is not None:
        raise InputError(f"{kind!r} is none of {', '.join(LISTINGS)}{hint}")
    home = next((one for one in LISTINGS if kind in LISTINGS[one].entries), None)
    if home in ("models", "devices"):
        raise InputError(f"{kind} is one of the {home}: weft list {home} {kind}")
    if home is None and near:
        raise UnknownSchedule(f"no schedule named {kind!r}{hint}")
    return "schedules", kind
