"""Files: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import InputError


def write(path: Path, text: str) -> None:
    """Write beside the file, then put it in its place; what is no plain file is written to."""
    target = path.resolve()
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
        beside.replace(target)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)
