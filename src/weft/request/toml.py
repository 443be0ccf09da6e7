"""TOML: files of settings, with refusals that name the line; knows no setting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from weft.cost.checks import quoted
from weft.errors import InputError

_PLACE = re.compile(r"\(at line (\d+), column \d+\)")
_LINE = 'a line has a name and its value, texts in quotes: schedule = "zbv"'


def settings_in(text: str, path: Path) -> dict[str, Any]:
    """The settings of a file's text; InputError names the line that is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        lines = text.splitlines()
        number = int(place[1]) if place else len(lines)
        shown = quoted(lines[number - 1].strip()) if lines else "the file"
        remedy = "the name is there already; leave out one" if _is_twice(error) else _LINE
        raise InputError(f"{path}, line {number}: {shown} is not TOML: {remedy}") from None
    except (ValueError, RecursionError):  # of numbers with too many digits, and lists of lists
        raise InputError(f"{path} is not TOML: a number or a list in it is too long") from None


def _is_twice(error: tomllib.TOMLDecodeError) -> bool:
    return str(error).startswith(("Cannot overwrite", "Cannot declare"))
