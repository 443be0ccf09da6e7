"""Files: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import InputError


def check_folder(path: Path) -> None:
    """Refuse a file that has no folder to stand in, before work is done for it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {folder}")


def write(path: Path, content: str | bytes) -> None:
    """Write beside the file, then put it in its place; a pipe or a device is written to itself."""
    target = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    if target.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    check_folder(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def _replace(target: Path, data: bytes) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
