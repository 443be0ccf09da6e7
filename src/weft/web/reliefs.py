"""Reliefs: what a live page asks for so that less is in memory, spelled as the command line does.

--recompute selective    norms and activation functions are computed again
--recompute all|0,2,4    whole forwards are, of all stages or of some
--offload auto|all|0.5   saved state waits on the host
"""

from __future__ import annotations

from weft.errors import InputError
from weft.request import Passes
from weft.request.values import Text, picked

SELECTIVE = "--recompute selective"
SINGLE = (SELECTIVE, "--offload auto", "--recompute all")
BOTH = (f"{SELECTIVE} --offload auto", "--recompute all --offload auto")
OFFERED = ("", *SINGLE, *BOTH)
RELIEF = Text(most=1024)


def read_relief(relief: str) -> Passes:
    """A relief out of its spelling; stages are checked once there is a program."""
    words = relief.split()
    flags, values = words[::2], words[1::2]
    is_known = set(flags) <= {"--recompute", "--offload"} and len(set(flags)) == len(values)
    if not is_known or len(words) % 2:
        offered = ", ".join(map(repr, OFFERED))
        raise InputError(f"relief is one of {offered}, or has stages: '--recompute 0,2'")
    names = [flag.removeprefix("--") for flag in flags]
    return picked(Passes, dict(zip(names, values, strict=True)), *names)
