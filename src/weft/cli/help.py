"""Help: the options of a command, those that belong together under a heading of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import click

from weft.cli.looks import Looks
from weft.request import Machine, Passes, Prices, Sizes

OWN = "Options"  # of the command alone


def names_of(bundle: type) -> list[str]:
    """The options that a bundle has."""
    return [item.name for item in fields(bundle)]


SECTIONS = {
    "The shape": names_of(Sizes),
    "The picture": names_of(Looks),
    "Added to the program": names_of(Passes),
    "Costs in units, or from a file": names_of(Prices),
    "Costs of a model on a device": names_of(Machine),
}


class Sectioned(click.Command):
    """A command whose help has headings, each with the names of its options."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] = SECTIONS, **more: Any):
        super().__init__(*args, **more)
        self._sections = {name: title for title, names in sections.items() for name in names}
        self._titles = [*sections, OWN]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, one section after the other."""
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in self._titles}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                rows[self._sections.get(parameter.name or "", OWN)].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
