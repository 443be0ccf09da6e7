"""The command line: flags become values, and values go to the functions that a user would call.

A command's file loads when the command is called, so that `weft --help` imports little.
"""

import click

from weft import __version__
from weft.cli.group import Group

COMMANDS = {
    "train": "A schedule trains a small GPT in real processes.",
    "profile": "Measure what that costs here, for predictions.",
    "list": "Schedules, models and devices, or all about one.",
    "draw": "A schedule as a timeline: terminal, SVG, PNG or page.",
    "compare": "All schedules at one shape, ranked.",
    "explain": "Where its time and memory go, and what would help.",
    "serve": "The page live in a browser, on this machine.",
    "simulate": "Time, bubbles and memory of one schedule.",
    "verify": "Prove a program, or list every rule that it breaks.",
    "export": "A program or its timeline as text, JSON, CSV or a trace.",
    "completion": "What bash, zsh or fish need to complete all this.",
}

main = click.version_option(__version__, message="weft %(version)s")(Group(COMMANDS))

__all__ = ["main"]
