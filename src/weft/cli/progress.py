"""Progress: a bar or a word on standard error, where it is a terminal and the wait is long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PATIENCE = 1.0  # seconds before anything appears

Item = TypeVar("Item")


def with_progress(items: Sequence[Item]) -> Iterator[Item]:
    """The items, with a bar once they take longer than a second."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield from items
        return
    progress = Progress(console=console, transient=True)
    task = progress.add_task("", total=len(items))
    with if_slow(progress.start, progress.stop):
        for item in items:
            yield item
            progress.advance(task)


@contextmanager
def working(words: str) -> Iterator[None]:
    """Words and a sign of life, once what is done takes longer than a second."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield
        return
    status = console.status(words)
    with if_slow(status.start, status.stop):
        yield


@contextmanager
def updated(words: str) -> Iterator[Callable[[str], None]]:
    """The same with words that change: call what it gives with others."""
    console = Console(stderr=True)
    if not console.is_interactive:
        yield lambda words: None
        return
    status = console.status(words)
    with if_slow(status.start, status.stop):
        yield status.update


@contextmanager
def if_slow(start: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """Start something once a second has passed, and stop it at the end."""
    timer = Timer(PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        stop()


@contextmanager
def bar(words: str, *, is_shown: bool) -> Iterator[Callable[[float, str], None]]:
    """A bar with words beside it; call what it gives with the fraction that is done, and words."""
    console = Console(stderr=True)
    if not (is_shown and console.is_interactive):
        yield lambda fraction, words: None
        return
    columns = BarColumn(bar_width=20), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(words, total=1.0)
        yield lambda fraction, words: progress.update(task, completed=fraction, description=words)
