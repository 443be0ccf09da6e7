"""The task: what is to be trained, and the program as it is walked, before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from weft.cost import Cost, evened
from weft.errors import InputError
from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.ir.weights import StageGroups
from weft.lower import Amount, executable, offload, offloads, one_wire, over
from weft.notation import from_json, to_json
from weft.runtime.compression import AskedCompression, ByEdge, compression_of
from weft.runtime.device.link import CAUTION, assumed, slowed
from weft.runtime.device.place import place_of, real
from weft.runtime.distributed import check_distributed
from weft.runtime.initial.blueprint import Blueprint
from weft.runtime.initial.building import Builder
from weft.runtime.lane.ring import Ring
from weft.runtime.losses import LossFunction
from weft.runtime.pieces import cut_for_offload
from weft.runtime.ranks.agreement import (
    refuse_different,
    structure,
)
from weft.runtime.ranks.carriers import WITH_NCCL
from weft.runtime.ranks.world import World
from weft.runtime.stage.calling import taken_by
from weft.runtime.stage.modules import refuse_unsuited, unshared
from weft.runtime.stage.values import Carries
from weft.runtime.suit import check_suits
from weft.runtime.weights.apart import check_apart
from weft.runtime.weights.options import Updating
from weft.runtime.weights.staleness import check_ties, scoped
from weft.runtime.weights.ties import End, ties_of, untie
from weft.simulate import simulate
from weft.verify import check


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be trained, checked and lowered; the same on every rank, but for the device.

    given    the program as it is to be lowered
    lowered  makes of it the one that is walked
    program  as it is walked
    shared   stages that share a module with another
    tied     stages that share a weight with another, also one that never learns
    resident versions of each stage: a drain makes updates before the program would
    depth    messages that a channel must take
    device   of the stages that this process holds
    held     these
    compression  of what crosses devices, by edge
    """

    blueprint: Blueprint
    stages: Sequence[nn.Module]
    carries: Carries
    ties: Sequence[Sequence[End]]
    shared: set[int]
    tied: set[int]
    given: Program
    lowered: Callable[[Program], Program]
    program: Program
    ring: Ring
    norms: StageGroups
    resident: Sequence[int]
    updating: Updating
    depth: int
    device: torch.device
    held: Collection[int]
    compression: ByEdge = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        blueprint: Blueprint,
        program: Program,
        loss: LossFunction,
        updating: Updating,
        devices: range,
    ) -> Task:
        """Refuse what cannot be trained so; make of the program the one that ranks walk.

        This process will run these devices of it.
        """
        stages = blueprint.stages
        program = program if stages.graph is None else over(program, stages.graph)
        check_suits(stages, program)
        refuse_unsuited(stages, loss)
        check_distributed(blueprint, program, updating.precision)
        is_updating = updating.factories.optimizer is not None
        if not is_updating:
            _refuse_without_optimizer(program, updating)
        every = ties_of(stages)
        has_versions = program.period is not None or updating.precision.compute is not None
        ties = [ends for ends in every if not has_versions or _learns(stages, ends)]
        check_ties(program, ties)
        check_apart(stages, ties, program)
        norms = scoped(program, updating.clip_by) if updating.is_measuring else ()
        own, shared = unshared(stages)
        untie(own, ties_of(own))
        lowered = partial(
            executable,
            ties=[[end.stage for end in ends] for ends in ties],
            norms=norms if is_updating else (),
            is_updating=is_updating,
            is_sharded=updating.is_sharded,
        )
        walked = lowered(program)
        depth = check(walked).channel_depth or 0
        places = program.placement.held[devices.start : devices.stop]
        held = sorted({stage for held in places for _, stage in held})
        device = real(place_of(own, [one for one in held if one not in blueprint.functions]))
        resident = resident_versions(program)
        return cls(
            blueprint,
            own,
            stages.carries,
            ties,
            shared,
            {end.stage for ends in every for end in ends},
            program,
            lowered,
            walked,
            Ring(walked),
            norms,
            resident,
            updating,
            depth,
            device,
            held,
        )

    @property
    def taken(self) -> tuple[str, ...] | None:
        """The names that a batch may have; None where stages take no names."""
        before = self.program.graph.predecessors
        return taken_by([stage for index, stage in enumerate(self.stages) if not before[index]])

    def compressing(self, asked: AskedCompression) -> Task:
        """The same with messages that are compressed."""
        return replace(self, compression=compression_of(asked, self.program.graph))

    def offloading(self, amount: Amount, cost: Cost | None) -> Task:
        """The same with so much of what forwards keep on the host; as it is, where it offloads.

        Copies have time to spare: where they fill the link, one that is late makes all others so.
        """
        if amount == "none" or offloads(self.given):
            return self
        given = cut_for_offload(self.given, self.stages)
        timeline = simulate(given, assumed(given) if cost is None else slowed(cost, CAUTION))
        walked = self.lowered(offload(timeline, amount=amount))
        check(walked)
        return replace(self, program=walked, ring=Ring(walked))

    def over(self, world: World, cost: Cost | None) -> Task:
        """The same over a transport that needs transfers of a device in one order."""
        if world.carrier not in WITH_NCCL:
            return self
        walked = one_wire(self.program, evened(cost), is_ordered=world.keeps_order)
        check(walked)
        return replace(self, program=walked, ring=Ring(walked))

    def built(self, world: World, seed: int, deadline: float | None) -> Task:
        """The same with the stages that this process holds, once all ranks know the same ones."""
        known = f"{self.program.digest} {seed} {structure(self.stages)}"
        what = "program, seed or stages"
        refuse_different(world.gather(known.encode(), what), what)
        what = "compressed edges or reduce="
        known = f"{self.compression} {self.updating.reduction}"
        refuse_different(world.gather(known.encode(), what), what)
        here = b"here" if self.blueprint.lacks(self.held) else b""
        if not any(world.gather(here, "who has to make stages")):
            return self
        world.begin(deadline, "making of the stages")
        made = Builder(self.blueprint, self.device, seed).built(self.stages, self.held)
        own, _ = unshared(made)
        untie(own, ties_of(own))
        world.end()
        read = replace(self.blueprint, checkpoint=None)  # which may be all weights of the model
        return replace(self, stages=own, blueprint=read)


def agreed(world: World, cost: Cost | None) -> Cost | None:
    """Rank 0's cost: by two of them, ranks would launch their actions in two orders."""
    share = b"" if cost is None else to_json(cost).encode()
    first = world.gather(share, "the cost")[0]
    found = from_json(first.decode()) if first else None
    assert found is None or isinstance(found, Cost)
    return found


def _refuse_without_optimizer(program: Program, updating: Updating) -> None:
    """Refuse what only an optimizer could do."""
    if updating.factories.scheduler is not None or program.period is not None:
        why = "updates by itself" if program.period is not None else "was given a scheduler"
        raise InputError(f"{program.name} {why} and needs an optimizer: give optimizer=")
    if updating.is_sharded:
        raise InputError("shard_optimizer=True shards the state of an optimizer: give optimizer=")


def _learns(stages: Sequence[nn.Module], ends: Sequence[End]) -> bool:
    return stages[ends[0].stage].get_parameter(ends[0].name).requires_grad
