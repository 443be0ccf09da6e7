"""The page as one file: its style, its modules and its data, with nothing left to load.

Modules keep the names by which they import one another; an import map says where each is, which
is inside the file. A policy in the page keeps the browser from asking any other host.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path

from weft.simulate import Step
from weft.timeline import Timeline
from weft.web.figures import step_of
from weft.web.helps import what_helps
from weft.web.view import view
from weft.web.words import words

FORMAT, VERSION = "weft.page", 1
ASSETS = files("weft.web") / "assets"


def write_page(
    path: str | PathLike[str], timelines: Sequence[Timeline], titles: Sequence[str] = ()
) -> None:
    """Write a page of some timelines, one above the other on one scale of time.

    Two of the same program, as predicted and as measured, are shown device by device.
    """
    Path(path).write_text(page(timelines, titles), encoding="utf-8")


def page(
    timelines: Sequence[Timeline],
    titles: Sequence[str] = (),
    *,
    options: Mapping[str, object] | None = None,
) -> str:
    """The page of some timelines, under their own names or these; `options` it begins with.

    Runs are compared by as many microbatches as the largest step has.
    """
    names = [*titles, *[""] * (len(timelines) - len(titles))]
    most = max((Step.of(timeline).microbatches for timeline in timelines), default=1)
    views = [
        view(timeline, name, step_of(timeline, most)) | {"helps": what_helps(timeline)}
        for timeline, name in zip(timelines, names, strict=True)
    ]
    return assembled({"timelines": views, "options": options or {}})


def assembled(content: Mapping[str, object]) -> str:
    """The page of this content: `timelines`, and perhaps `points` or `live`."""
    document = {"format": FORMAT, "version": VERSION, "words": words(), **content}
    contents = {
        "title": escape(_title(content)),
        "policy": _policy(is_live="live" in content),
        "style": _text("style.css"),
        "modules": json.dumps({"imports": _modules()}),
        "data": json.dumps(document, allow_nan=False).replace("<", "\\u003c"),
    }
    text = _text("index.html")
    for name, content_of in contents.items():
        text = text.replace("{{" + name + "}}", content_of, 1)
    return text


def _title(content: Mapping[str, object]) -> str:
    timelines = content.get("timelines")
    names = [view["name"] for view in timelines] if isinstance(timelines, list) else []
    return " · ".join([*names[:3], "Weft"])


def _policy(*, is_live: bool) -> str:
    """What the browser may load: what is in the file, and where it is live its own server."""
    connects = "'self'" if is_live else "'none'"
    return (
        "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline';"
        f" img-src data: blob:; connect-src {connects}; base-uri 'none'; form-action 'none'"
    )


def _modules() -> dict[str, str]:
    """Where each module is: in the page itself."""
    names = sorted(part.name for part in ASSETS.iterdir() if part.name.endswith(".js"))
    return {f"weft/{name}": _inlined(name) for name in names}


def _inlined(name: str) -> str:
    content = b64encode(_text(name).encode()).decode("ascii")
    return f"data:text/javascript;base64,{content}"


def _text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
