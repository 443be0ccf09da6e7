"""The errors of Weft, one tree; every one says what, where, why and what to do.

WeftError
├── InputError            what the user gave cannot be read or makes no sense
│   ├── NotationError     a file or text that does not parse: where, and why
│   ├── ShapeError        a schedule refuses this shape: the reason and the nearest that works
│   ├── Disagreement      ranks were given different things: which ranks, and what
│   ├── SaveError         a save cannot be written or read: which, and why; on all ranks
│   └── UnknownSchedule   no schedule of that name: the nearest that exists
├── ProgramError          a readable program breaks a rule: every finding, in order
├── RankError             another rank failed, died, left or kept this one waiting
└── NonfiniteError        the loss or the norm of the gradients is not finite
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "Disagreement",
    "InputError",
    "NonfiniteError",
    "NotationError",
    "ProgramError",
    "RankError",
    "SaveError",
    "ShapeError",
    "UnknownSchedule",
    "WeftError",
]


class WeftError(Exception):
    """The root of everything Weft raises on purpose."""


class InputError(WeftError):
    """What the user gave cannot be read or makes no sense."""


class NotationError(InputError):
    """A text or file that does not parse."""

    def __init__(self, reason: str, *, source: str = "", line: int | None = None) -> None:
        self.reason = reason
        self.source = source
        self.line = line
        super().__init__(reason)

    def __str__(self) -> str:
        place = self.source or "input"
        if self.line is not None:
            place = f"{place}, line {self.line}"
        return f"{place}: {self.reason}"

    def within(self, source: str) -> NotationError:
        """The same error, naming the file it came from."""
        return NotationError(self.reason, source=source, line=self.line)


class ShapeError(InputError):
    """A schedule refuses a shape."""


class Disagreement(InputError):
    """Ranks were given different things; all of them raise this."""


class SaveError(InputError):
    """A save cannot be written, or is not one of this model; all ranks raise this."""


class UnknownSchedule(InputError):
    """No schedule of that name."""


class ProgramError(WeftError):
    """A program breaks a rule; `findings` holds every breach, `shown` those that its text has."""

    def __init__(self, findings: Sequence[object], shown: Sequence[object] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in shown or findings))


class RankError(WeftError):
    """Another rank failed, died, left or kept this one waiting: who, and what was waited for."""


class NonfiniteError(WeftError):
    """The loss or the norm of the gradients is not finite; no weight was changed."""
