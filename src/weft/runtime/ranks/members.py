"""Members: which ranks of the process group run a program, device by device.

    mesh (dp, pp) of 2 x 3    ranks 0 1 2      replica 0 on devices 0 1 2
                                    3 4 5      replica 1 on devices 3 4 5
    mesh (pp, dp) of 3 x 2    ranks 0 1        stage by stage: replica 0 has ranks 0 2 4
                                    2 3
                                    4 5

A mesh has its pipeline along "pp" and its replicas along "dp" and "ep": those along "ep" hold some
of the experts each. Any other dimension is a matter of the stages themselves: at each place along
it there is a pipeline of its own. Those along "tp" are given the same batch, and those along "fsdp"
a share of it each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import replicated
from weft.runtime.device.place import is_alone
from weft.runtime.stage.seeds import mixed

PIPELINE, REPLICAS, EXPERTS = "pp", "dp", "ep"
SHARES = "fsdp", "dp_shard", "dp_replicate"  # along which stages are sharded by FSDP2


@dataclass(frozen=True)
class Members:
    """The ranks of a run by device: those of the first replica, then those of the next.

    `expert_ranks` neighbouring replicas each hold some of the experts. `is_all` where they are the
    whole process group. `share` is which share of a batch they are given where others hold shards
    of the same weights, and are given other shares. `everyone` are the ranks of all pipelines of
    the mesh, where it has several: the first has the first share.
    """

    ranks: tuple[int, ...]
    replicas: int = 1
    expert_ranks: int = 1
    is_all: bool = True
    share: int = 0
    has_shares: bool = False
    everyone: tuple[int, ...] = ()

    @classmethod
    def all(cls) -> Self:
        """Every rank of the process group runs the device of its number."""
        return cls(tuple(range(dist.get_world_size())))

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Self:
        """Those of this rank's pipeline and its replicas."""
        names = mesh.mesh_dim_names or ()
        if PIPELINE not in names:
            known = ", ".join(names) or "without names"
            raise InputError(
                f"mesh= has no dimension {PIPELINE!r} ({known}): make it with"
                f" init_device_mesh(device, (replicas, devices), mesh_dim_names=('dp', 'pp'))"
            )
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise InputError(
                f"rank {dist.get_rank()} is not in mesh=: give ranks outside it no pipeline"
            )
        ranks = _along(mesh.mesh, names, coordinate)
        found = tuple(int(rank) for rank in ranks.flatten().tolist())
        share = 0
        for name, size, where in zip(names, mesh.shape, coordinate, strict=True):
            share = share * size + where if name in SHARES else share
        everyone = tuple(int(rank) for rank in mesh.mesh.flatten().tolist())
        return cls(
            found,
            ranks.shape[0],
            mesh.shape[names.index(EXPERTS)] if EXPERTS in names else 1,
            is_all=len(found) == dist.get_world_size(),
            share=share,
            has_shares=any(name in SHARES for name in names),
            everyone=everyone if len(everyone) > len(found) else (),
        )

    def seed(self, seed: int) -> int:
        """What forwards here draw by: another one for each share of a batch."""
        return mixed(seed, self.share) if self.share else seed

    @cached_property
    def device(self) -> int:
        """The device of this process."""
        return self.ranks.index(dist.get_rank())

    @property
    def here(self) -> range:
        """The devices of this process."""
        return range(self.device, self.device + 1)

    @property
    def devices(self) -> int:
        """Of one replica."""
        return len(self.ranks) // self.replicas

    def running(self, program: Program) -> Program:
        """The program with as many replicas; refuse one of another size."""
        if program.devices == self.devices:
            program = replicated(program, self.replicas, expert_ranks=self.expert_ranks)
        self.check(program)
        self._check_experts(program)
        return program

    def _check_experts(self, program: Program) -> None:
        ranks = len(program.expert_groups[0]) if program.expert_groups else 1
        if self.expert_ranks not in (1, ranks):
            raise InputError(
                f"{program.name} has groups of {ranks} expert ranks, and mesh= has"
                f" {self.expert_ranks} along {EXPERTS!r}; let both be the same, or give the program"
                f" of one replica"
            )

    def check(self, program: Program) -> None:
        """Refuse a program that is not for as many ranks."""
        if program.devices == len(self.ranks):
            return
        name, devices, ranks = program.name, program.devices, len(self.ranks)
        if self.replicas > 1 or not self.is_all:
            raise InputError(
                f"{name} has {devices} devices, and mesh= has {self.devices} along {PIPELINE!r};"
                f" let both be the same"
            )
        hint = (
            f", or, to train {ranks // devices} replicas, give a mesh ({REPLICAS}, {PIPELINE}) by"
            f" mesh="
            if ranks % devices == 0
            else ""
        )
        raise InputError(
            f"{name} has {devices} devices, the process group {ranks} ranks; start one rank for"
            f" each device{hint}"
        )


def members_of(mesh: DeviceMesh | None, carrier: str) -> Members | None:
    """Whoever runs a program; None where this process runs all devices."""
    if not is_alone(carrier):
        return Members.all() if mesh is None else Members.of(mesh)
    if mesh is not None:
        raise InputError(
            "mesh= is for the ranks of a process group; in one process give the program of all"
            " replicas: weft.lower.replicated(program, replicas)"
        )
    return None


def _along(ranks: Tensor, names: Sequence[str], coordinate: Sequence[int]) -> Tensor:
    """The ranks as [replica, device], at this rank's place along all other dimensions."""
    kept = [name for name in (REPLICAS, EXPERTS, PIPELINE) if name in names]
    place = [
        slice(None) if name in kept else where
        for name, where in zip(names, coordinate, strict=True)
    ]
    found = ranks[tuple(place)]
    order = [[name for name in names if name in kept].index(name) for name in kept]
    return found.permute(order).reshape(-1, found.shape[order[-1]])
