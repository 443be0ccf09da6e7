"""Collectives: sums over some of the ranks by torch's own process groups.

Groups are made once, before the first step, all of them in one order on all ranks. While a rank
waits for others in a sum, it watches whether they live.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from weft.errors import RankError
from weft.runtime.ranks.forks import Sockets, opened
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.transport.communicators import Guard, abort, close, connected_sums
from weft.runtime.transport.exchange import StorePart, connected_in_turn, others_of
from weft.runtime.transport.groups import LONG, reason_of
from weft.runtime.transport.under_way import UnderWay

SLICE = datetime.timedelta(seconds=0.05)  # of a wait between two looks at the mesh
PATIENCE = datetime.timedelta(seconds=1)  # for what others have sent before they left
WHAT = "a sum of gradients"

DeviceSet: TypeAlias = tuple[int, ...]  # in order


class Collective(Protocol):
    """What sums over some of the devices; all of them call the same, in one order.

    `devices` are in the order in which shares of a sum are theirs.
    """

    devices: DeviceSet

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over all devices, which may be written where the tensor was."""

    def scattered(self, tensor: Tensor) -> Tensor:
        """This device's share of the sum: of as many parts of equal length as there are devices."""


class Collectives(Protocol):
    """Those of a run."""

    by_devices: Mapping[DeviceSet, Collective]

    def abort(self) -> None:
        """End what waits for other ranks."""

    def close(self) -> None:
        """Close all connections."""


class GlooSums:
    """Sums over some devices by a group of gloo."""

    def __init__(self, mesh: Mesh, group: Any, devices: DeviceSet) -> None:
        self._mesh, self._group, self.devices = mesh, group, devices
        self._others = [device for device in devices if device != mesh.rank]

    def summed(self, tensor: Tensor) -> Tensor:
        self._finish(lambda: self._group.allreduce([_real(tensor)]))
        return tensor

    def scattered(self, tensor: Tensor) -> Tensor:
        share = tensor.new_empty(len(tensor) // len(self.devices))
        options = dist.ReduceScatterOptions()
        self._finish(lambda: self._group._reduce_scatter_base(_real(share), _real(tensor), options))
        return share

    def _finish(self, begin: Callable[[], dist.Work]) -> None:
        """Sum, and name whoever dies or is late meanwhile."""
        began = time.monotonic()
        try:
            work = begin()
            while not _is_over(work, SLICE):
                self._watch(began, work)
        except RuntimeError:
            raise reason_of(self._mesh, WHAT, *self._others) from None

    def _watch(self, began: float, work: dist.Work) -> None:
        """Refuse to wait for a rank that is gone, unless it has left with all that it had to do."""
        try:
            self._mesh.watch(began, WHAT, *self._others)
        except RankError as reason:
            with suppress(RuntimeError):
                if _is_over(work, PATIENCE):
                    return
            raise reason from None


class GlooCollectives:
    """Groups of gloo, known to the ranks of a run alone; all ranks make them."""

    def __init__(self, mesh: Mesh, sets: Sequence[DeviceSet]) -> None:
        self._sockets: Sockets | None = None
        mine = [devices for devices in sets if mesh.rank in devices]

        def make(store: Store) -> dict[DeviceSet, Any]:
            return {devices: _gloo(store, mesh.rank, devices) for devices in mine}

        try:
            with opened() as self._sockets:
                self._groups = connected_in_turn(mesh, make)
        except RuntimeError as error:
            others = others_of(mesh)
            raise reason_of(mesh, "all ranks to connect for sums", *others) from error
        self.by_devices: Mapping[DeviceSet, Collective] = {
            devices: GlooSums(mesh, group, devices) for devices, group in self._groups.items()
        }

    def abort(self) -> None:
        for group in self._groups.values():
            with suppress(RuntimeError):
                group.abort()

    def close(self) -> None:
        self.by_devices, self._groups = {}, {}


class LaunchedSum(NamedTuple):
    """A sum with these other devices."""

    peers: Sequence[int]
    work: dist.Work

    @property
    def is_over(self) -> bool:
        return self.work.is_completed()


class NcclSums:
    """Sums over some devices by a communicator: launched on the stream that is entered."""

    def __init__(self, mesh: Mesh, group: Any, devices: DeviceSet, under_way: UnderWay) -> None:
        self._mesh, self._group, self.devices = mesh, group, devices
        self._others = [device for device in devices if device != mesh.rank]
        self._under_way = under_way

    def summed(self, tensor: Tensor) -> Tensor:
        self._launch(lambda: self._group.allreduce([_real(tensor)]))
        return tensor

    def scattered(self, tensor: Tensor) -> Tensor:
        share = tensor.new_empty(len(tensor) // len(self.devices))
        options = dist.ReduceScatterOptions()
        self._launch(lambda: self._group._reduce_scatter_base(_real(share), _real(tensor), options))
        return share

    def _launch(self, begin: Callable[[], dist.Work]) -> None:
        """Let the entered stream wait for it; the host goes on."""
        try:
            work = begin()
            self._under_way.add(LaunchedSum(self._others, work))
            work.wait()
        except RuntimeError:
            raise reason_of(self._mesh, WHAT, *self._others) from None


class NcclCollectives:
    """Communicators of NCCL for sums; all ranks make them."""

    def __init__(self, mesh: Mesh, device: torch.device, sets: Sequence[DeviceSet]) -> None:
        self._mesh, self._groups = mesh, connected_sums(mesh, device, sets)
        self.under_way = UnderWay(WHAT)
        self.by_devices: Mapping[DeviceSet, Collective] = {
            devices: NcclSums(mesh, group, devices, self.under_way)
            for devices, group in self._groups.items()
        }
        self._guard = Guard(mesh, self, self.under_way)

    def abort(self) -> None:
        abort([*self._groups.values()])

    def close(self) -> None:
        self.under_way.finish(self._mesh)
        self._guard.close()
        close(self._groups.values())
        self.by_devices, self._groups = {}, {}


def _gloo(store: Store, rank: int, devices: DeviceSet) -> Any:
    part = StorePart(store, f"{devices}")
    return ProcessGroupGloo(part, devices.index(rank), len(devices), LONG)


def _is_over(work: dist.Work, soon: datetime.timedelta) -> bool:
    """Whether it ends so soon; RuntimeError where it fails."""
    try:
        work.wait(soon)
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True


def _real(tensor: Tensor) -> Tensor:
    """The same memory in numbers that every group can sum."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
