"""Palettes: what colour each kind of action has, in the page's two sets.

The first is Okabe and Ito's, which people of every colour vision can tell apart; the second is
that of the figures in which these schedules were first drawn: forward blue, backward red,
pipeline communication green, expert communication yellow.
"""

from __future__ import annotations

from weft.ir.kinds import Kind, Part

PALETTES: dict[str, dict[str, str]] = {
    "safe": {
        "F": "#0072b2",
        "B": "#e69f00",
        "I": "#f3c25b",
        "W": "#009e73",
        "R": "#56b4e9",
        "wire": "#cc79a7",
        "experts": "#f0e442",
        "copy": "#9a8fbf",
        "update": "#8a5a2b",
    },
    "papers": {
        "F": "#3b76d6",
        "B": "#d64545",
        "I": "#ee8f86",
        "W": "#9a6bc9",
        "R": "#8fb4e8",
        "wire": "#4caf6a",
        "experts": "#f2c230",
        "copy": "#9aa3ad",
        "update": "#5c4a3d",
    },
}

COLOURS: dict[Kind, str] = {
    Kind.F: "F",
    Kind.B: "B",
    Kind.I: "I",
    Kind.W: "W",
    Kind.R: "R",
    Kind.SEND_ACTIVATION: "wire",
    Kind.RECV_ACTIVATION: "wire",
    Kind.SEND_GRADIENT: "wire",
    Kind.RECV_GRADIENT: "wire",
    Kind.OFFLOAD: "copy",
    Kind.ONLOAD: "copy",
    Kind.REDUCE: "wire",
    Kind.UPDATE: "update",
    Kind.FREE: "update",
}
MOVED = [int(Part.DISPATCH), int(Part.COMBINE)]  # of a layer's parts, those that communicate
