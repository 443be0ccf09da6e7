"""Carriers: which transport the ranks of a run use, by what is asked for and where they are.

          one host     several hosts
CPUs      shared       gloo
GPUs      peer         nccl; mixed where some ranks share a host
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.device.place import name_for_nccl, refuse_shared_gpus
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.window import Windows
from weft.runtime.transport import Transport
from weft.runtime.transport.collectives import (
    Collectives,
    DeviceSet,
    GlooCollectives,
    NcclCollectives,
)
from weft.runtime.transport.communicators import Communicators
from weft.runtime.transport.grouped import Grouped
from weft.runtime.transport.groups import Gloo
from weft.runtime.transport.mixed import Mixed
from weft.runtime.transport.nccl import Nccl
from weft.runtime.transport.peer import PeerMemory, check_reach, identity
from weft.runtime.transport.shared import Shared

MOST_COPIES = 64  # of a tied weight, times the updates of it that may be under way

Carrier: TypeAlias = Literal["auto", "loopback", "shared", "peer", "gloo", "nccl", "mixed"]

OF_ONE_HOST = ("shared", "peer")
OF_GPUS = ("peer", "nccl", "mixed")
WITH_NCCL = ("nccl", "mixed")


def chosen(carrier: Carrier, hosts: Sequence[str], device: torch.device) -> Carrier:
    """The transport of a run whose ranks are on these hosts, in their order."""
    is_cuda, is_one_host = device.type == "cuda", len({*hosts}) == 1
    if carrier == "auto":
        if not is_cuda:
            return "shared" if is_one_host else "gloo"
        far: Carrier = "nccl" if len({*hosts}) == len(hosts) else "mixed"
        return "peer" if is_one_host else far
    if carrier in OF_ONE_HOST and not is_one_host:
        other = "nccl" if is_cuda else "gloo"
        raise InputError(
            f"transport='{carrier}' needs all ranks on one Linux host; use '{other}' between hosts"
        )
    if carrier in OF_GPUS and not is_cuda:
        raise InputError(f"transport='{carrier}' needs stages on GPUs; use 'shared' or 'gloo'")
    return carrier


@dataclass(frozen=True)
class Carriers:
    """What transports of a run are made of; `hosts` has that of each rank."""

    mesh: Mesh
    program: Program
    device: torch.device
    windows: Windows
    hosts: Sequence[str]

    def transport(self, carrier: Carrier) -> Transport:
        """Of that name; every rank calls this."""
        if carrier == "shared":
            return Shared(self.mesh, self.windows)
        if carrier == "peer":
            return self._peer()
        if carrier == "nccl":
            return self._nccl()
        if carrier == "mixed":
            return Mixed(self._peer(), self._nccl(), self.is_far)
        program = self.program
        numbers = program.microbatches * program.steps, MOST_COPIES, program.placement.table.size
        return Grouped(self.mesh, Gloo(self.mesh), numbers=max(numbers), windows=self.windows)

    def collectives(self, sets: Sequence[DeviceSet]) -> Collectives:
        """What sums over each of these sets of devices; every rank calls this."""
        if self.device.type != "cuda":
            return GlooCollectives(self.mesh, sets)
        self._refuse_shared_gpus()
        return NcclCollectives(self.mesh, self.device, sets)

    def is_far(self, source: int, destination: int) -> bool:
        """Whether two ranks are on two hosts."""
        return self.hosts[source] != self.hosts[destination]

    def _peer(self) -> Transport:
        names = self.mesh.gather(identity(self.device).encode(), "the GPUs")
        here = self.hosts[self.mesh.rank]
        check_reach({rank: n.decode() for rank, n in enumerate(names) if self.hosts[rank] == here})
        accelerator = accelerator_of(self.device)
        assert accelerator is not None
        memory = PeerMemory(self.mesh, self.device, accelerator)
        return Shared(self.mesh, self.windows, memory)

    def _refuse_shared_gpus(self) -> None:
        known = name_for_nccl(identity(self.device)).encode()
        names = self.mesh.gather(known, "the GPUs that NCCL serves")
        refuse_shared_gpus([name.decode() for name in names])

    def _nccl(self) -> Nccl:
        self._refuse_shared_gpus()
        accelerator = accelerator_of(self.device)
        assert accelerator is not None
        made = Communicators(self.mesh, self.device, neighbours(self.program))
        return Nccl(self.mesh, made, self.device, accelerator)


def neighbours(program: Program) -> Sequence[tuple[int, int]]:
    """Pairs of devices that exchange messages, or gradients of copies or of tied weights."""
    pipes = program.placement.pipes
    tied = [(one, other) for ends in program.ties for one in ends for other in ends]
    found = {(pipe[a], pipe[b]) for pipe in pipes for a, b in (*program.graph.edges, *tied)}
    found |= {(one[s], other[s]) for one in pipes for other in pipes for s in range(program.stages)}
    return sorted({(min(pair), max(pair)) for pair in found if pair[0] != pair[1]})
