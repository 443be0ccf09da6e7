"""The walk: a rank launches its actions in one order, and the drive runs them.

What drives them is not known here: threads of a CPU (`threads`), streams of a GPU (`streams`), or
one thread where all devices are in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from weft.errors import WeftError
from weft.ir.kinds import Stream
from weft.ir.program import Program
from weft.notation import token
from weft.runtime.lane.gates import Across, AnyGate, Steps
from weft.runtime.lane.steps import Step
from weft.runtime.ranks.clock import Recording
from weft.runtime.transport.message import Route


class Entry(NamedTuple):
    """A step to be run: its row, and its lap after that in which a plan begins.

    What closes gradients after an action, and is none itself, has the complement of its row: ~row.
    """

    row: int
    lap: int
    step: Step


@dataclass(slots=True)
class Plan:
    """What each thread runs, and the messages that come and go, each channel's in order."""

    threads: dict[Stream, list[Entry]] = field(default_factory=dict)
    incoming: list[Route] = field(default_factory=list)
    outgoing: list[Route] = field(default_factory=list)


class Drive(Protocol):
    """What runs the entries of a plan; `has_threads` of its own for streams besides compute."""

    has_threads: bool

    def streams(self) -> Mapping[int, Stream]:
        """The stream on which each row runs, where that is not compute."""

    def joined(self, steps: Steps, closings: Steps, across: Across) -> tuple[Steps, Steps]:
        """The steps and closings as they are run, where lanes wait for each other."""

    def gate(self) -> AnyGate | None:
        """A gate between lanes; None where they need none."""

    def run(self, plan: Plan, lap: int, recording: Recording) -> None:
        """Run a plan that begins in that lap, until its computation has ended."""

    def finish(self) -> None:
        """Wait until all that was launched has ended."""

    def end_step(self) -> None:
        """The same but for gathers, which are left to the next step."""

    def restart(self) -> None:
        """Laps are counted anew; nothing runs."""

    def close(self) -> None:
        """Nothing is run any more."""


def walk(program: Program, entries: Sequence[Entry], first: int, recording: Recording) -> None:
    """Run these, one after the other; the plan begins in the lap `first`."""
    now, log, row = recording.now, recording.log.append, 0
    try:
        for row, lap, step in entries:
            lap += first
            step.wait(lap)
            start = now()
            step.run(lap)
            log((row, lap, start, now()))
    except WeftError:
        raise
    except Exception as error:
        raise blamed(program, row, error) from error


def blamed(program: Program, row: int, error: Exception) -> WeftError:
    """What went wrong in the user's code, and where."""
    action = max(row, ~row)
    where = "at" if row == action else "after"
    device = program.device_of[action]
    return WeftError(f"device {device} failed {where} {token(program, action)}: {error}")


class InTurn:
    """All devices of a program in one thread."""

    has_threads = False

    def __init__(self, program: Program) -> None:
        self._program = program

    def streams(self) -> Mapping[int, Stream]:
        return {}

    def joined(self, steps: Steps, closings: Steps, across: Across) -> tuple[Steps, Steps]:
        return steps, closings

    def gate(self) -> None:
        """One thread runs all of them in order."""

    def run(self, plan: Plan, lap: int, recording: Recording) -> None:
        for entries in plan.threads.values():
            walk(self._program, entries, lap, recording)

    def end_step(self) -> None:
        """It has ended, with its gathers."""

    def finish(self) -> None:
        """It has."""

    def restart(self) -> None:
        """Nobody waits for a lap."""

    def close(self) -> None:
        """Nothing was started."""
