"""Help: the options of a command, those that belong together under a heading of their own."""

from __future__ import annotations

from dataclasses import fields

import click

from weft.cli.looks import Looks
from weft.cli.options import Machine, Passes, Prices

BUNDLES = {
    "The picture": Looks,
    "Added to the program": Passes,
    "Costs in units, or from a file": Prices,
    "Costs of a model on a device": Machine,
}
SECTIONS = {item.name: title for title, bundle in BUNDLES.items() for item in fields(bundle)}


class Sectioned(click.Command):
    """A command whose help has headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, one section after the other."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *BUNDLES)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections[SECTIONS.get(parameter.name or "", "Options")].append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
