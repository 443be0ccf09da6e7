"""A server that has torch and Weft imported, and forks a process for each rank.

    python benchmarks/survival/server.py [brief]     asked by `campaign.py`, line by line, in JSON

It answers with the process of each rank, and, later, with how and when that ended. A rank is a
child that leaves the loop: it ends as an interpreter does, with all that it does at its end.
Brief: it calls the functions that are registered for the end, and leaves the rest, most of the
time that a rank takes, to the kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import script
import torch
from cases import Case
from strikes import Strike, kill

POLL = 0.01  # seconds between two looks at the children
DIE_WITH_PARENT = 1  # of prctl(2)


def warm() -> None:
    """Do once what every rank would have to: import what is imported late, fill caches."""
    torch.set_num_threads(1)
    for schedule in ("chimera", "wpipe"):
        case = Case(0, 0, "kill", "", "user", 0, 0, schedule, 2, "loopback", 60.0)
        strike = Strike(None, "user", 0, kill, Path())
        pipeline = script.pipeline_of(case, strike, transport="loopback")
        batch = torch.randn(pipeline.program.microbatches, script.WIDTH)
        pipeline.step(batch, batch)
        pipeline.evaluate(batch, batch)
        pipeline.close()
    if threading.active_count() > 1:
        raise SystemExit("a process with several threads cannot be forked")


def say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def served() -> dict[str, Any] | None:
    """Fork for each request: a child returns with its own, the server with none at the end."""
    pending = b""
    while True:
        reap()
        if not select.select([0], [], [], POLL)[0]:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            return None
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            child = os.fork()
            if not child:
                return dict(json.loads(line))
            say(started=child, request=json.loads(line)["request"])


def reap() -> None:
    """Report the children that have ended since."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        say(ended=child, code=os.waitstatus_to_exitcode(status), when=time.monotonic())


def main() -> None:
    warm()
    gc.freeze()  # so that the end of a rank does not walk through all that it shares with others
    say(ready=os.getpid())
    request = served()
    if request is None:
        return
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    tempfile.tempdir = None  # as the environment of the rank says it
    rank, folder = request["rank"], Path(request["folder"])
    script.enter(rank, folder, request["host"])
    case = Case(**request["case"])
    if sys.argv[1:] == ["brief"]:
        _briefly(case, rank, folder)
    script.run(case, rank, folder)


def _briefly(case: Case, rank: int, folder: Path) -> NoReturn:
    """The same, without the interpreter's own end."""
    code: Any = 0
    try:
        script.run(case, rank, folder)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
