"""Configuration: the options of a command as a flat TOML file, read and written.

    schedule = "zbv"
    devices = 2
    learning-rate = 0.003

A key is the name of an option, with dashes or underscores. What is typed wins over the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from weft.cli.options import Command, Decorator, Option, Options
from weft.cost.checks import quoted
from weft.cost.mapping import named
from weft.errors import InputError
from weft.request.toml import settings_in
from weft.request.values import read as read_value

MOST_CHARACTERS = 1 << 20  # of a file


def configured(*bundles: Options) -> Decorator:
    """Add --config: a file for the options of these bundles, where they are not typed."""
    names = [name for bundle in bundles for name in bundle]

    def read(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
        if path is not None:
            options = {one.name: one for one in context.command.params if isinstance(one, Option)}
            known = {name.replace("_", "-"): options[name] for name in names}
            context.default_map = _defaults(path, known)

    def decorate(command: Command) -> Command:
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=read,
            metavar="FILE.toml",
            help="Read options from a file, by their names; the command line wins.",
        )(command)

    return decorate


def to_toml(settings: Mapping[str, str | int | float]) -> str:
    """A file for --config."""
    lines = (f"{key.replace('_', '-')} = {_written(value)}\n" for key, value in settings.items())
    return "".join(lines)


def _written(value: str | int | float) -> str:
    """A value as TOML has it, which escapes in a text what JSON does, and DEL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{value!a} cannot be written in UTF-8; give it another name") from None
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _defaults(path: Path, known: Mapping[str, Option]) -> dict[str, Any]:
    """The values of a file, by the names of their options; InputError for what fits none."""
    values: dict[str, Any] = {}
    for key, value in _parsed(path).items():
        try:
            option = known.get(key.replace("_", "-")) or named(known, key, "setting")
            read_value(option.value, value, key)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if option.name in values:
            raise InputError(f"{path}: {quoted(key)} stands there twice; leave out one")
        values[str(option.name)] = value
    return values


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            raise InputError(
                f"{path} is longer than the {MOST_CHARACTERS:,} characters of settings"
            )
        return settings_in(text, path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not TOML, which is text in UTF-8; save it as that") from None
