"""Notebooks: what they are given, and what they show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import weft
from weft.draw import Look, View, plain, show, to_svg
from weft.draw.look import DARK
from weft.schedules import one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline

TIMELINE = simulate(one_f_one_b(devices=2, microbatches=2))


@dataclass
class Formatter:
    """As much of IPython's as is asked of it."""

    functions: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)

    def for_type_by_name(self, module: str, name: str, function: Callable[..., Any]) -> None:
        self.functions[module, name] = function


def test_a_picture_has_a_drawing_and_letters() -> None:
    shown = show(TIMELINE)._repr_mimebundle_()
    assert shown == {"image/svg+xml": to_svg(TIMELINE), "text/plain": plain(TIMELINE, width=100)}


def test_view_and_look_can_be_chosen() -> None:
    view, look = View(only=(1,)), Look(theme=DARK)
    assert weft.show(TIMELINE, view=view, look=look).svg == to_svg(TIMELINE, view=view, look=look)


def test_the_extension_shows_every_timeline() -> None:
    formatter = Formatter()
    weft.load_ipython_extension(
        SimpleNamespace(display_formatter=SimpleNamespace(mimebundle_formatter=formatter))
    )
    function = formatter.functions[Timeline.__module__, Timeline.__name__]
    assert function(TIMELINE, include=None, exclude=None)["image/svg+xml"] == to_svg(TIMELINE)


def test_outside_a_notebook_importing_weft_loads_nothing() -> None:
    code = "import sys, weft; print([n for n in sys.modules if n.startswith(('weft.', 'numpy'))])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_ipython_itself_shows_the_picture() -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    weft.load_ipython_extension(shell)
    forms, _ = shell.display_formatter.format(TIMELINE)
    assert forms["image/svg+xml"] == to_svg(TIMELINE)
