"""Worlds: who runs which devices, and what they say to each other besides messages.

`Alone` runs every device in this process; `Ranks` runs one device on each rank of a process
group, started by torchrun or anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.agreement import refuse_different
from weft.runtime.board import Board
from weft.runtime.clock import lag
from weft.runtime.ledger import Ledger
from weft.runtime.mesh import Mesh
from weft.runtime.rendezvous import meet
from weft.runtime.ties import End
from weft.runtime.transport import Transport
from weft.runtime.transport.grouped import Grouped, gloo_groups, nccl_groups
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.shared import Shared
from weft.runtime.window import Windows, windows_of

MOST_COPIES = 64  # of a tied weight, times the updates of it that may be under way

Carrier: TypeAlias = Literal["auto", "shared", "gloo", "nccl"]


class World(Protocol):
    """What a pipeline needs of the processes that run it."""

    devices: range  # that this process runs
    carrier: str  # the transport that was chosen, by name
    transport: Transport
    ledger: Ledger
    board: Board
    lag: float  # what to add to this process's clock to have that of device 0

    def gather(self, share: bytes, what: str) -> list[bytes]:
        """What every process knows, in their order; all of them ask."""

    def total(self, values: Tensor, what: str) -> Tensor:
        """The sum over all processes, in their order, where each adds what it knows and zeros."""

    def begin(self, deadline: float | None) -> None:
        """Start a run in which no wait is longer; refuse it after a failure."""

    def fail(self, reason: str) -> None:
        """End the waits of all other processes."""


class Alone:
    """All devices in one process."""

    def __init__(self, program: Program) -> None:
        self.devices = range(program.devices)
        self.carrier = "loopback"
        self.transport: Transport = Loopback()
        self.ledger = Ledger(None, ())
        self.board = Board(None)
        self.lag = 0.0

    def gather(self, share: bytes, what: str) -> list[bytes]:
        return [share]

    def total(self, values: Tensor, what: str) -> Tensor:
        return values

    def begin(self, deadline: float | None) -> None:
        """Nothing to wait for."""

    def fail(self, reason: str) -> None:
        """Nobody else waits."""


class Ranks:
    """One device for each rank of the process group.

    `depth` messages of a channel may have to be under way for the program to run at all.
    """

    def __init__(
        self,
        program: Program,
        *,
        depth: int,
        carrier: Carrier,
        device: torch.device,
        ties: Sequence[Sequence[End]] = (),
    ) -> None:
        if dist.get_world_size() != program.devices:
            raise InputError(
                f"{program.name} has {program.devices} devices, the process group"
                f" {dist.get_world_size()} ranks; start one rank for each device"
            )
        met = meet()
        self._mesh = met.mesh
        self.devices = range(met.mesh.rank, met.mesh.rank + 1)
        chosen = _chosen(carrier, met.is_one_host, device)
        refuse_different(self.gather(chosen.encode(), "transports"), "transports")
        self.carrier: str = chosen
        windows = windows_of(program, least=depth)
        pairs = _neighbours(program, ties)
        self.transport = _transport(chosen, met.mesh, (program, pairs), device, windows)
        self.ledger = Ledger(met.mesh, _last_devices(program))
        self.board = Board(met.mesh)
        self.lag = 0.0 if met.is_one_clock else lag(met.mesh)

    def gather(self, share: bytes, what: str) -> list[bytes]:
        return self._mesh.gather(share, what)

    def total(self, values: Tensor, what: str) -> Tensor:
        shares = self.gather(values.numpy().tobytes(), what)
        parts = [torch.frombuffer(bytearray(share), dtype=values.dtype) for share in shares]
        summed = parts[0].clone()
        for part in parts[1:]:
            summed += part
        return summed.view(values.shape)

    def begin(self, deadline: float | None) -> None:
        self._mesh.check()
        self._mesh.deadline = deadline

    def fail(self, reason: str) -> None:
        self._mesh.fail(reason)
        self.transport.abandon()


def _chosen(carrier: Carrier, is_one_host: bool, device: torch.device) -> Carrier:
    if carrier == "auto":
        if device.type == "cuda" and dist.get_backend() == "nccl":
            return "nccl"
        return "shared" if is_one_host else "gloo"
    if carrier == "shared" and not is_one_host:
        raise InputError("transport='shared' needs all ranks on one Linux host; use 'gloo'")
    if carrier == "nccl" and device.type != "cuda":
        raise InputError("transport='nccl' needs stages on GPUs; use 'gloo'")
    return carrier


def _transport(
    carrier: Carrier,
    mesh: Mesh,
    run: tuple[Program, Sequence[tuple[int, int]]],
    device: torch.device,
    windows: Windows,
) -> Transport:
    if carrier == "shared":
        return Shared(mesh, windows)
    program, neighbours = run
    groups = nccl_groups(neighbours) if carrier == "nccl" else gloo_groups(program.devices)
    buffers = device if carrier == "nccl" else torch.device("cpu")
    numbers = max(program.microbatches * program.steps, MOST_COPIES, program.placement.table.size)
    return Grouped(mesh, groups, numbers=numbers, device=buffers, windows=windows)


def _neighbours(program: Program, ties: Sequence[Sequence[End]]) -> Sequence[tuple[int, int]]:
    """Pairs of devices that exchange messages, or gradients of copies or of tied weights."""
    pipes = program.placement.pipes
    tied = [(one.stage, other.stage) for ends in ties for one in ends for other in ends]
    found = {(pipe[a], pipe[b]) for pipe in pipes for a, b in (*program.graph.edges, *tied)}
    found |= {(one[s], other[s]) for one in pipes for other in pipes for s in range(program.stages)}
    return sorted({(min(pair), max(pair)) for pair in found if pair[0] != pair[1]})


def _last_devices(program: Program) -> list[int]:
    """Where losses are computed."""
    return [
        int(pipe[stage])
        for pipe in program.placement.pipes
        for stage, after in enumerate(program.graph.successors)
        if not after
    ]
