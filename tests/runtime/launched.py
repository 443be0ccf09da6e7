"""Scripts on ranks, in the environment that torchrun gives them.

The fork server has torch ready for every rank, which torchrun's ranks would import first. What each
rank prints is kept apart: lines that several processes write to one pipe may run together.
"""

from __future__ import annotations

import io
import os
import runpy
import socket
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch.distributed as dist

from tests.runtime.ranks import run


def printed(ranks: int, script: Path, *words: str) -> list[str]:
    """What the script prints on each rank; it joins a process group by itself, on CPUs."""
    return run(ranks, _run, _free_port(), script, words)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(port: int, script: Path, words: tuple[str, ...]) -> str:
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    dist.destroy_process_group()
    os.environ |= {
        **{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"},
        "CUDA_VISIBLE_DEVICES": "",
    }
    sys.argv = [str(script), *words]
    with redirect_stdout(io.StringIO()) as output:
        runpy.run_path(str(script), run_name="__main__")
    return output.getvalue()
