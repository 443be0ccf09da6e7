"""The command line: flags become values, and values go to the functions that a user would call.

A command's file loads when the command is called, so that `weft --help` imports little.
"""

import click

from weft import __version__
from weft.cli.group import Group

COMMANDS = {
    "train": "Train a small GPT with a schedule, in real processes.",
    "profile": "Measure what training costs on this machine.",
    "list": "List schedules, models and devices, or describe one.",
    "draw": "Draw a timeline: in the terminal, SVG, PNG or HTML.",
    "compare": "Rank all schedules at one shape.",
    "plan": "Find the fastest way to train a model on a cluster.",
    "explain": "Explain where time and memory go, and what would help.",
    "serve": "Serve the interactive page on this machine.",
    "simulate": "Report time, bubbles and memory of one schedule.",
    "synthesize": "Find the best order for given times and memory.",
    "verify": "Prove a program correct, or list the rules it breaks.",
    "export": "Write a program or timeline as text, JSON, CSV or trace.",
    "completion": "Print the completion script for bash, zsh or fish.",
}

main = click.version_option(__version__, message="weft %(version)s")(Group(COMMANDS))

__all__ = ["main"]
