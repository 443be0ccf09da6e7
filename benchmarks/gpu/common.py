"""What the scripts have in common: ranks that share a GPU, stages of GPT blocks, rows.

What CUDA, MPS and NCCL read from the environment is there before they start in a rank. On a CPU
everything runs as well, with shared memory instead of `peer` and gloo instead of `nccl`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from borrowed import Job, PlainSetting, Timing, Watch, Work, by_events, by_host, init, run
from torch import nn

from weft.ir.program import Program
from weft.models.gpt import Block
from weft.models.moe import moe
from weft.runtime.ranks import rendezvous

SCHEDULES = ("1f1b", "interleaved-1f1b", "zbv", "dualpipev", "kimi-k2", "wpipe")
ON_CPU = {"peer": "shared", "nccl": "gloo", "mixed": "gloo"}  # what stands for one without a GPU
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
HEAD = 128  # hidden units of an attention head
EXPERTS, TOP = 8, 2  # of a layer with experts, and of each token
SERVER = "nvidia-cuda-mps-control"
FAREWELL = 20  # seconds in which MPS ends

QUICK: dict[str, Any] = {
    "hidden": [64],
    "layers": [2],
    "rows": 2,
    "context": 16,
    "ranks": 2,
    "microbatches": 4,
    "steps": 3,
}


# the command line


def parsed(
    description: str | None, *, extra: Mapping[str, Any] = MappingProxyType({}), **defaults: Any
) -> argparse.Namespace:
    """The arguments that scripts with rows take; `--quick` only tries whether it works.

    extra  options that one script alone has, as argparse takes them
    """
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--schedules", nargs="+")
    parser.add_argument("--transports", nargs="+", choices=tuple(ON_CPU))
    parser.add_argument("--hidden", type=int, nargs="+")
    parser.add_argument("--layers", type=int, nargs="+", help="of a device")
    parser.add_argument("--rows", type=int, help="of a microbatch")
    parser.add_argument("--context", type=int, help="positions of a row")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--microbatches", type=int)
    parser.add_argument("--steps", type=int, help="of each contender, after a warm-up")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--share", type=int, help="%% of a GPU for a rank, by MPS; 0: without MPS")
    parser.add_argument("--timeout", type=int, default=90, help="seconds of a row")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, fewest steps")
    parser.add_argument("--model", choices=("gpt", "moe"), default="gpt", help="of what blocks")
    for name, settings in extra.items():
        parser.add_argument(name, **settings)
    arguments = parser.parse_args()
    usual = {"layers": [2], "rows": 2, "context": 1024, "ranks": 4, "microbatches": 16, "share": 25}
    usual |= defaults | (QUICK if arguments.quick else {})
    for name, value in usual.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if arguments.device == "cpu":
        arguments.transports = [*dict.fromkeys(ON_CPU[one] for one in arguments.transports)]
    return arguments


# rows


class Sizes(NamedTuple):
    """What all rows have in common."""

    ranks: int
    microbatches: int
    rows: int
    context: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.microbatches} x {self.rows} x {self.context}"


class Setting(NamedTuple):
    """What one row of a table is about; layers are those of a device."""

    schedule: str
    transport: str
    hidden: int
    layers: int
    sizes: Sizes

    @property
    def ranks(self) -> int:
        return self.sizes.ranks

    @property
    def microbatches(self) -> int:
        return self.sizes.microbatches

    @property
    def program(self) -> Program:
        return self._plain.program

    @property
    def refusal(self) -> str:
        """Why there is no such row, if there is none."""
        if self._plain.refusal:
            return self._plain.refusal
        each = self.program.stages // self.ranks
        why = f"{self.layers} layers of a device cannot be divided over its {each} stages"
        return why if self.layers % each else ""

    @property
    def _plain(self) -> PlainSetting:
        return PlainSetting(self.schedule, self.ranks, self.microbatches)


def settings(arguments: argparse.Namespace) -> list[Setting]:
    asked = product(arguments.transports, arguments.hidden, arguments.layers, arguments.schedules)
    sizes = Sizes(arguments.ranks, arguments.microbatches, arguments.rows, arguments.context)
    return [
        Setting(schedule, transport, hidden, layers, sizes)
        for transport, hidden, layers, schedule in asked
    ]


# in a rank


def here(arguments: argparse.Namespace) -> torch.device:
    """The device of this rank."""
    if arguments.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def timing(arguments: argparse.Namespace) -> Timing:
    """How actions are timed there."""
    return by_host if arguments.device == "cpu" else by_events


def work_of(setting: Setting, arguments: argparse.Namespace, *, dropout: float = 0.0) -> Work:
    """Stages of GPT blocks, and a batch of what they pass on, the same on every rank."""
    device, dtype = here(arguments), DTYPES[arguments.dtype]
    each = setting.layers * setting.ranks // setting.program.stages
    blocks = experts if arguments.model == "moe" else gpts

    def stage(index: int) -> nn.Module:
        torch.manual_seed(1 + index)
        with torch.device(device):
            return blocks(setting.hidden, each, dropout).to(dtype)

    torch.manual_seed(0)
    form = (setting.microbatches * setting.sizes.rows, setting.sizes.context, setting.hidden)
    batch, target = (torch.randn(form, device=device, dtype=dtype) for _ in range(2))
    return Work(stage, batch, target)


def gpts(hidden: int, layers: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(*(Block(hidden, heads_of(hidden), dropout) for _ in range(layers)))


def experts(hidden: int, layers: int, dropout: float) -> nn.Sequential:
    """Layers with experts, all of which are here; tokens are dealt out evenly."""
    model = moe(
        1,
        layers=layers,
        hidden=hidden,
        heads=heads_of(hidden),
        context=1,
        experts=EXPERTS,
        top=TOP,
        dense=0,
        dropout=dropout,
        load="balanced",
    )
    return model[1:-1]


def heads_of(hidden: int) -> int:
    return max(1, hidden // HEAD)


# ranks


def measured(
    job: Job, setting: Setting, arguments: argparse.Namespace, watch: Watch, **variables: str
) -> list[Any]:
    """What the job returns on each rank, with these variables in its environment."""
    share = arguments.share if arguments.device == "cuda" else 0
    with mps(share) as others:
        opening = partial(_opened, variables | others)
        return run(job, setting, arguments, watch, opening)  # type: ignore[arg-type]


def _opened(
    variables: Mapping[str, str],
    rank: int,
    store: str,
    setting: Setting,
    arguments: argparse.Namespace,
) -> None:
    """Make this process a rank that has its part of a GPU."""
    os.environ.update({**own_host(rank), **variables})
    if arguments.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if setting.transport == "mixed":
        seem_on_two_hosts(rank, setting.ranks)
    init(backend(setting.transport), rank, store, setting, arguments)  # type: ignore[arg-type]


def own_host(rank: int) -> dict[str, str]:
    """So that NCCL takes ranks on one GPU, each seems to be on a host of its own."""
    loopback = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    return {"NCCL_HOSTID": f"host{rank}", **loopback}


def seem_on_two_hosts(rank: int, ranks: int) -> None:
    """Let Weft take the first half of the ranks to be on one host, and the rest on another."""
    here = rendezvous._host()
    rendezvous._host = lambda: f"{here} {2 * rank // ranks}"


def backend(transport: str) -> str:
    """Of the process group that a transport of Weft, or torch beside it, needs."""
    return "cpu:gloo,cuda:nccl" if transport in ("nccl", "mixed") else "gloo"


@contextmanager
def mps(share: int) -> Iterator[dict[str, str]]:
    """The environment of processes that share a GPU, each with that many percent of it.

    The server is this block's own: one that a rank was killed under refuses others for a while.
    """
    with tempfile.TemporaryDirectory(prefix="weft-mps-", ignore_cleanup_errors=True) as folder:
        place = {f"CUDA_MPS_{name}_DIRECTORY": folder for name in ("PIPE", "LOG")}
        if not share:
            yield place  # where no server is: one that runs elsewhere is not used
            return
        _control(["-d"], "", place)
        try:
            yield place | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share)}
        finally:
            with suppress(RuntimeError):  # the next row has a server of its own
                _control([], "quit -t 5\n", place)


def _control(options: Sequence[str], text: str, place: Mapping[str, str]) -> None:
    """Say something to MPS; what it does not do is an error of the row."""
    try:
        subprocess.run(
            [SERVER, *options],
            input=text,
            text=True,
            env={**os.environ, **place},
            stdout=subprocess.DEVNULL,  # which a server would keep open
            stderr=subprocess.DEVNULL,
            timeout=FAREWELL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"{SERVER} failed: {error}; --share 0 does without MPS") from error
