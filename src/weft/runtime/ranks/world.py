"""Worlds: who runs which devices, and what they say to each other besides messages.

`Alone` runs every device in this process; `Ranks` runs one device on each rank of a process
group, started by torchrun or anything else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import Disagreement, InputError, RankError
from weft.ir.program import Program
from weft.runtime.device.place import current, is_alone, refuse_idle_gpus
from weft.runtime.device.readout import Readouts
from weft.runtime.experts.ranks import ExpertRanks
from weft.runtime.ranks.agreement import refuse_different
from weft.runtime.ranks.blame import devices_of, failure_of
from weft.runtime.ranks.carriers import Carrier, Carriers, chosen, neighbours
from weft.runtime.ranks.clock import offset
from weft.runtime.ranks.counts import Counts
from weft.runtime.ranks.everyone import Everyone, OneProcess, everyone_of
from weft.runtime.ranks.layouts import LayoutReports
from weft.runtime.ranks.losses import LossReports
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.rendezvous import meet
from weft.runtime.ranks.window import windows_of
from weft.runtime.transport import Transport
from weft.runtime.transport.collectives import Collective, Collectives, DeviceSet, NcclCollectives
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.mixed import Mixed
from weft.runtime.transport.nccl import Nccl
from weft.runtime.weights.norms import Norms


class World(Protocol):
    """What a pipeline needs of the processes that run it."""

    devices: range  # that this process runs
    carrier: str  # the transport that was chosen, by name
    transport: Transport
    losses: LossReports
    layouts: LayoutReports
    counts: Counts | None  # where last stages of other replicas count targets, too
    norms: Norms
    hosts: Sequence[str]  # of all processes, as many names as hosts
    offset: float  # what to add to this process's clock to have that of device 0
    everyone: Everyone  # also those of other pipelines that hold shards of the same stages

    def keeps_order(self, source: int, destination: int) -> bool:
        """Whether messages between two devices are part of one order of all transfers."""

    def collectives(self, sets: Sequence[DeviceSet]) -> Mapping[DeviceSet, Collective]:
        """What sums over those of these sets of devices that are in several processes; all ask."""

    def gather(self, share: bytes, what: str) -> list[bytes]:
        """What every process knows, in their order; all of them ask."""

    def total(self, values: Tensor, what: str) -> Tensor:
        """The sum over all processes, in their order, where each adds what it knows and zeros."""

    def look(self) -> None:
        """Refuse to go on where another process is known to have failed; any thread may ask."""

    def look_after(self, group: ExpertRanks, devices: Sequence[int]) -> None:
        """Let a group of ranks, of these devices, notice failures while it exchanges tokens."""

    def begin(self, deadline: float | None, first: str = "") -> None:
        """Start a run in which no wait is longer; refuse it after a failure.

        To a run that is called the first of its kind all processes come within the deadline; then
        waits may take as long as `patience` allows, as some of them may load weights or compile.
        """

    def end(self) -> None:
        """End a run: a first one is over everywhere."""

    def fail(self, reason: str) -> None:
        """End the waits of all other processes."""

    def end_first(self, user: Callable[[], None]) -> None:
        """Let this end what uses the connections before they are closed."""

    def close(self) -> None:
        """Leave the other processes in good order, and close all connections."""


class Alone:
    """All devices in one process."""

    def __init__(self, program: Program) -> None:
        self.devices = range(program.devices)
        self.carrier = "loopback"
        self.transport: Transport = Loopback(is_crossing=True)
        self.losses = LossReports(None, ())
        self.layouts = LayoutReports(None)
        self.counts: Counts | None = None
        self.norms = Norms(None)
        self.hosts: Sequence[str] = ("this",)
        self.offset = 0.0
        self.everyone: Everyone = OneProcess()

    def keeps_order(self, source: int, destination: int) -> bool:
        return False

    def collectives(self, sets: Sequence[DeviceSet]) -> Mapping[DeviceSet, Collective]:
        return {}

    def gather(self, share: bytes, what: str) -> list[bytes]:
        return [share]

    def total(self, values: Tensor, what: str) -> Tensor:
        return values

    def look(self) -> None:
        """Nobody else can fail."""

    def look_after(self, group: ExpertRanks, devices: Sequence[int]) -> None:
        raise InputError(
            "modules exchange tokens with other ranks, and this process runs all devices alone:"
            " start a rank for each device, or give weft.Reference a model that was built with"
            " weft.runtime.experts.Emulated"
        )

    def begin(self, deadline: float | None, first: str = "") -> None:
        """Nothing to wait for."""

    def end(self) -> None:
        """Nothing is under way."""

    def fail(self, reason: str) -> None:
        """Nobody else waits."""

    def end_first(self, user: Callable[[], None]) -> None:
        """There are no connections."""

    def close(self) -> None:
        """Nothing is open."""


class Ranks:
    """One device for each rank of the process group.

    depth     messages of a channel that may have to be under way for the program to run at all
    deadline  seconds of any wait
    patience  seconds of a wait in a first run
    """

    def __init__(
        self,
        program: Program,
        members: Members,
        *,
        depth: int,
        carrier: Carrier,
        device: torch.device,
        deadline: float | None = None,
        patience: float | None = None,
    ) -> None:
        members.check(program)
        met = meet(members, deadline, neighbours(program))
        self._mesh, self._ranks = met.mesh, members.ranks
        self._mesh.deadline = self._deadline = deadline
        self._first, self._patience = "", patience
        self._collectives: Collectives | None = None
        self._users: list[Callable[[], None]] = []
        self.devices = range(met.mesh.rank, met.mesh.rank + 1)
        with _reported(met.mesh), current(device):
            if carrier == "auto":
                refuse_idle_gpus(device, dist.get_backend())
            found = chosen(carrier, met.hosts, device)
            refuse_different(self.gather(found.encode(), "transports"), "transports")
            windows = windows_of(program, least=depth)
            carriers = Carriers(met.mesh, program, device, windows, met.hosts)
            self.carrier: str = found
            self._carriers = carriers
            self.transport = carriers.transport(found)
            far = self._far
            self._under_way = [far.under_way] if isinstance(far, Nccl) else []
            self._readouts = Readouts(self._look, is_watched=True)
            self.losses = LossReports(met.mesh, _last_devices(program), self._readouts)
            self.layouts = LayoutReports(met.mesh)
            self.counts = _counts(program, members, met.mesh)
            self.norms = Norms(met.mesh, self._readouts)
            self.hosts = met.hosts
            self.offset = 0.0 if met.is_one_clock else offset(met.mesh)
            self._whole = everyone_of(members, met.mesh, deadline)
            self.everyone: Everyone = self._whole

    def _look(self, since: float, what: str) -> None:
        """Refuse to wait on for this rank's own device, and name whom that may be waiting for."""
        try:
            self._mesh.watch(since, what)
        except RankError as error:
            waits = [(one.what, one.oldest()) for one in self._under_way]
            found = [f"{what} with {devices_of(first.others)}" for what, first in waits if first]
            if not found:
                raise
            raise RankError(f"{error}; its GPU waits for {' and for '.join(found)}") from None

    def keeps_order(self, source: int, destination: int) -> bool:
        if self.carrier == "mixed":
            return self._carriers.is_far(source, destination)
        return self.carrier == "nccl"

    def collectives(self, sets: Sequence[DeviceSet]) -> Mapping[DeviceSet, Collective]:
        self._collectives = self._carriers.collectives(sets)
        if isinstance(self._collectives, NcclCollectives):
            self._under_way.append(self._collectives.under_way)
        return self._collectives.by_devices

    def gather(self, share: bytes, what: str) -> list[bytes]:
        return self._mesh.gather(share, what)

    def total(self, values: Tensor, what: str) -> Tensor:
        shares = self.gather(values.numpy().tobytes(), what)
        parts = [torch.frombuffer(bytearray(share), dtype=values.dtype) for share in shares]
        summed = parts[0].clone()
        for part in parts[1:]:
            summed += part
        return summed.view(values.shape)

    def look(self) -> None:
        self._mesh.look()
        if self._whole is not self._mesh:
            self._whole.look()

    def look_after(self, group: ExpertRanks, devices: Sequence[int]) -> None:
        ranks = tuple(self._ranks[device] for device in devices)
        if group.members != ranks:
            raise InputError(
                f"device {self._mesh.rank} would exchange tokens with ranks {group.members}, and"
                f" its expert group in the program has ranks {ranks}: build the model with"
                f" ExpertRanks(mesh.get_group('ep'))"
            )
        others = [device for device in devices if device != self._mesh.rank]
        group.bind(self._mesh, f"the tokens of {devices_of(others)}", others)

    def begin(self, deadline: float | None, first: str = "") -> None:
        self._mesh.check()
        self._allow(deadline)
        self._deadline, self._first = deadline, first
        if isinstance(far := self._far, Nccl):
            far.is_first = bool(first)
        for under_way in self._under_way:
            under_way.is_running = True
        if first:
            refuse_different(self.gather(first.encode(), f"the {first}"), "first runs")
            self._allow(
                self._patience,
                f" of the {first}, in which kernels are loaded and may be compiled, or weights are"
                f" read; first_deadline= allows for more",
            )

    def end(self) -> None:
        for under_way in self._under_way:
            under_way.is_running = False
        if self._first:
            self.gather(b"", f"the end of the {self._first}")
            self._first = ""
            self._allow(self._deadline)

    @property
    def _far(self) -> Transport:
        """What carries values between hosts."""
        return self.transport.far if isinstance(self.transport, Mixed) else self.transport

    def _allow(self, seconds: float | None, occasion: str = "") -> None:
        """Bound all waits from now on."""
        for mesh in (self._mesh, self._whole):
            mesh.deadline, mesh.occasion = seconds, occasion

    def fail(self, reason: str) -> None:
        self._mesh.fail(reason)
        self.transport.abandon()
        if self._collectives is not None:
            self._collectives.abort()

    def end_first(self, user: Callable[[], None]) -> None:
        self._users.append(user)

    def close(self) -> None:
        while self._users:
            self._users.pop()()
        with suppress(RankError, RuntimeError):  # of a rank or a device that has failed
            self._readouts.settle("its last losses and norms")
        self._readouts.close()
        if self._collectives is not None:
            self._collectives.close()
        self.transport.close()
        self._mesh.close()
        self._whole.close()


def world_of(
    program: Program,
    members: Members | None = None,
    *,
    depth: int,
    carrier: Carrier,
    device: torch.device,
    deadline: float | None = None,
    patience: float | None = None,
) -> World:
    """The ranks of the process group, or some of them; this process alone where there is none."""
    if not is_alone(carrier):
        return Ranks(
            program,
            members or Members.all(),
            depth=depth,
            carrier=carrier,
            device=device,
            deadline=deadline,
            patience=patience,
        )
    if carrier != "loopback":
        _refuse_lonely_ranks()
    return Alone(program)


def _refuse_lonely_ranks() -> None:
    """Refuse ranks of torchrun that have made no process group."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return
    ranks = int(os.environ["WORLD_SIZE"])  # noqa: TID251 (as torchrun says it)
    if ranks > 1:
        raise InputError(
            f"torchrun has started {ranks} ranks, but there is no process group, so that each would"
            f" train the whole model alone; call torch.distributed.init_process_group('gloo')"
            f" before the pipeline is made, or ask for just that with transport='loopback'"
        )


@contextmanager
def _reported(mesh: Mesh) -> Iterator[None]:
    """Whatever goes wrong here ends the waits of all other ranks."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Disagreement):  # which all ranks raise
            mesh.fail(failure_of(error, mesh.rank))
        mesh.close()
        raise


def _counts(program: Program, members: Members, mesh: Mesh) -> Counts | None:
    """What a last stage needs where others have other targets."""
    last, devices = {*_last_devices(program)}, members.devices
    if members.replicas == 1 or mesh.rank not in last:
        return None
    first = range(0, len(members.ranks), devices)
    return Counts(mesh, [sorted(last.intersection(range(k, k + devices))) for k in first])


def _last_devices(program: Program) -> list[int]:
    """Where losses are computed."""
    return [
        int(pipe[stage])
        for pipe in program.placement.pipes
        for stage, after in enumerate(program.graph.successors)
        if not after
    ]
