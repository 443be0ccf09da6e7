"""Exit statuses: the one place that turns an error into a message and a number.

0    done
1    a readable program breaks a rule
2    the input cannot be read or makes no sense
130  interrupted
141  whoever read the output has stopped
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from weft.errors import ProgramError, WeftError

BROKEN_RULE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


NEAR = 2  # options that may have been meant


class OutputClosed(Exception):
    """Nobody reads the output any more."""


def status_of(run: Callable[[], object]) -> int:
    """Run, write what is buffered, give the status; other errors than ours keep their traceback."""
    try:
        _be_lenient()
        result = run()
        if sys.stdout:
            sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.Abort:
        return INTERRUPTED
    except (BrokenPipeError, OutputClosed):
        _write_nowhere()
        return BROKEN_PIPE
    except ProgramError as error:
        return _reported(str(error), BROKEN_RULE)
    except WeftError as error:
        return _reported(str(error), BAD_INPUT)
    except click.ClickException as error:
        return _reported(_usage(error), BAD_INPUT)
    except OSError as error:
        return _reported(_reason(error), BAD_INPUT)


def _reported(message: str, status: int) -> int:
    click.echo(f"weft: {message}", err=True)
    return status


def _usage(error: click.ClickException) -> str:
    """Click's message, and where to read more."""
    message = " ".join(error.format_message().rstrip(".").split())
    if isinstance(error, click.NoSuchOption):
        known = error.ctx.command.params if error.ctx else []
        old = {name for one in known for name in getattr(one, "old", ())}
        near = " or ".join([n for n in error.possibilities or () if n not in old][:NEAR])
        message = f"No such option {error.option_name}" + (
            f"; did you mean {near}?" if near else ""
        )
    context = getattr(error, "ctx", None)
    end = "" if message.endswith("?") else "."
    return f"{message}{end}" + (f" Try '{context.command_path} --help'." if context else "")


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _be_lenient() -> None:
    """An output that cannot show a character gets a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _write_nowhere() -> None:
    """What is still buffered must not fail again when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
