"""Progress: a bar on standard error, where it is a terminal and the wait is long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

PATIENCE = 1.0  # seconds before a bar appears

Item = TypeVar("Item")


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """The items, with a bar once they take longer than a second."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    began = monotonic()
    progress = Progress(console=console, transient=True)
    task = progress.add_task("", total=len(items))
    try:
        for item in items:
            yield item
            progress.advance(task)
            if monotonic() - began > PATIENCE:
                progress.start()
    finally:
        if progress.live.is_started:
            progress.stop()
