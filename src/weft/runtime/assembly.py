"""Assembly: of modules, a program and the ranks of a run, all that a pipeline consists of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from weft.cost import Cost, evened
from weft.ir.graph import Backward
from weft.ir.kinds import Kind, Part
from weft.lower import one_wire
from weft.runtime.criterion import Criterion
from weft.runtime.device.accelerator import accelerator_of
from weft.runtime.experts.ranks import groups_in
from weft.runtime.lane.bind import Binder, Copies
from weft.runtime.lane.lanes import Lanes
from weft.runtime.lane.ring import Ring
from weft.runtime.losses import LossFunction
from weft.runtime.ranks.agreement import (
    refuse_different,
    refuse_different_weights,
    sums_of_copies,
    sums_of_ends,
)
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.world import World
from weft.runtime.reading import Reading
from weft.runtime.setting import Setting
from weft.runtime.stage.captures import Capturer
from weft.runtime.stage.graphed import Graphed
from weft.runtime.stage.locks import Locks, locks_of
from weft.runtime.stage.modules import copied
from weft.runtime.stage.offload import MovedBytes
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.segments import layers_of_numbers, segments_of
from weft.runtime.stage.shapes import StageShapes, is_torchs
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.storage.blocks import HostBlocks
from weft.runtime.stage.trained import Trained
from weft.runtime.suit import forwards_of
from weft.runtime.task import Task
from weft.runtime.training import Training
from weft.runtime.transport.compressed import Compressed
from weft.runtime.weights.versions import Stash
from weft.runtime.weights.weights import Model, Weights


class Assembly:
    """What a process has of a pipeline.

    capturing  makes what captures the work of a stage, where stages are replayed
    """

    def __init__(
        self,
        task: Task,
        world: World,
        loss: LossFunction,
        seed: int,
        cost: Cost | None,
        capturing: Callable[[torch.device], Capturer] | None = None,
        *,
        is_recorded: bool = True,
    ) -> None:
        self._task, self._world, self.draw = task, world, Draw(seed)
        self._capturing, self._blocks = capturing, HostBlocks()
        self.modules = self._copied()
        self._look_after_experts()
        self._compare_copies()
        model = Model(task.stages, task.ties, task.resident, self.modules)
        ring = task.ring
        self.weights = Weights(
            ring.source, ring.numbers, model, task.updating, task.norms, world, task.device
        )
        for group in self.weights.all_groups:
            group.is_in_fixed_memory = capturing is not None
        is_whole = task.program.graph.stages[-1].is_whole_batch
        self.criterion = Criterion(loss, task.device, is_whole_batch=is_whole)
        graph, precision = task.program.graph, task.updating.precision
        shapes = StageShapes(task.stages, graph, loss, task.device, precision, task.carries)
        copies = {place: self._segments(*place) for place in self.modules}
        self._stages = [stage for found in copies.values() for stage in found]
        stages = [
            Trained(stage, self._locks(index), shapes)
            for (_, index), found in copies.items()
            for stage in found
        ]
        accelerator = accelerator_of(task.device)
        record = partial(Recording, accelerator, is_kept=is_recorded)
        setting = Setting(world, stages, shapes, self.criterion, self.draw, record)
        forwards = forwards_of(ring.program)
        if any(lane.is_one_wire for lane in ring.program.lanes):
            forwards = one_wire(forwards, evened(cost), is_ordered=world.keeps_order)
        lanes = self._bound(ring, copies, shapes, self.weights, cost)
        self.compare(lanes.digest, "the orders in which actions are launched")
        self.training = Training(lanes, self.weights, setting)
        self.reading = Reading(self._bound(Ring(forwards), copies, shapes, None, None), setting)

    @property
    def moved(self) -> MovedBytes:
        """What went to the host so far, and what came back."""
        away = sum(stage.offloaded_bytes for stage in self._stages)
        return MovedBytes(away, sum(stage.onloaded_bytes for stage in self._stages))

    def close(self) -> None:
        self.training.close()
        self.reading.close()

    def compare(self, known: str, what: str) -> None:
        """Refuse ranks that do not agree."""
        refuse_different(self._world.gather(known.encode(), what), what)

    def _copied(self) -> dict[tuple[int, int], nn.Module]:
        """The copies that this process holds; the first of each is the user's own module."""
        modules: dict[tuple[int, int], nn.Module] = {}
        for pipe, devices in enumerate(self._task.program.placement.pipes):
            for index, module in enumerate(self._task.stages):
                if devices[index] in self._world.devices:
                    is_first = all((other, index) not in modules for other in range(pipe))
                    modules[pipe, index] = module if is_first else copied(module, index)
        return modules

    def _look_after_experts(self) -> None:
        """Let groups with which modules exchange tokens notice when another rank fails."""
        program = self._task.program
        for (pipe, stage), module in self.modules.items():
            own = next((group for group in program.expert_groups if pipe in group), (pipe,))
            devices = [program.placement.pipes[one][stage] for one in own]
            for group in groups_in(module):
                if group.size > 1:
                    self._world.look_after(group, devices)

    def _compare_copies(self) -> None:
        """Refuse copies of a stage, and ends of a weight, that do not start alike."""
        known = sums_of_ends(self.modules, self._task.ties)
        if len(self._task.program.placement.pipes) > 1:
            known |= sums_of_copies(self.modules)
        share = json.dumps(known).encode()
        refuse_different_weights(self._world.gather(share, "the weights of the copies"))

    def _segments(self, pipe: int, index: int) -> list[Stage]:
        """A stage as it is run: whole, or in the segments that the program cuts it into."""
        actions = self._task.program.actions
        found = actions.segment[(actions.stage == index) & (actions.segment >= 0)]
        numbers = np.unique(found).tolist()
        module = self.modules[pipe, index]
        parts = segments_of(module, layers_of_numbers(numbers)) if numbers else [module]
        stashes = self.weights.stashes(pipe, index)
        roles = [self._role(index, place, numbers, stashes) for place in range(len(parts))]
        return [self._made(part, role) for part, role in zip(parts, roles, strict=True)]

    def _made(self, module: nn.Module, role: Role) -> Stage:
        """A stage, which is replayed where it is asked for and something in it is learned from."""
        extent = self._task.program.graph.stages[role.index].backward
        is_still = extent is Backward.NONE or next(module.parameters(), None) is None
        if self._capturing is None or is_still:
            return Stage(module, self.draw, role)
        return Graphed(
            module,
            self.draw,
            role,
            self._capturing(self._task.device),
            judge=self.criterion if role.loss is not None else None,
            ends_at_input=extent is Backward.INPUT,
        )

    def _role(
        self, index: int, place: int, numbers: Sequence[int], stashes: Sequence[Stash]
    ) -> Role:
        """What the segment at a place of these is; a stage that is not cut has none."""
        count = max(1, len(numbers))
        program, graph = self._task.program, self._task.program.graph
        sources = graph.predecessors[index]
        has_inputs_alone = (
            all(len(graph.successors[source]) == 1 for source in sources)
            if sources
            else sum(not before for before in graph.predecessors) == 1
        )
        kinds = program.actions.kind[program.actions.stage == index]
        precision = self._task.updating.precision
        is_end = place == count - 1 and not graph.successors[index]
        handed = precision.judged if is_end else precision.compute
        is_beside = bool(numbers) and numbers[place] % len(Part) in (Part.DISPATCH, Part.COMBINE)
        return Role(
            index=index,
            is_first=place == 0 and not sources,
            is_split=bool((kinds == Kind.I).any()),
            has_inputs_alone=has_inputs_alone or place > 0,
            loss=self.criterion if is_end else None,
            judged_by=self.criterion.judges_by,
            is_loss_drawing=not is_torchs(self.criterion.loss),
            stashes=stashes,
            is_stashing=program.is_stashing,
            is_after=place > 0,
            is_before=place < count - 1,
            is_beside=is_beside,
            precision=precision,
            taken=precision.compute if place == 0 else None,
            handed=handed if place == count - 1 else None,
            blocks=self._blocks,
            device=self._task.device,
        )

    def _locks(self, index: int) -> Locks:
        task, program = self._task, self._task.ring.program
        return locks_of(program, index, is_shared=index in task.shared, is_tied=index in task.tied)

    def _bound(
        self,
        ring: Ring,
        copies: Copies,
        shapes: StageShapes,
        weights: Weights | None,
        cost: Cost | None,
    ) -> Lanes:
        transport, asked = self._world.transport, self._task.compression
        by_edge = [asked.get(edge) for edge in ring.program.graph.edges]
        wired = Compressed(transport, by_edge) if asked else transport
        binder = Binder(ring, self._world.devices, copies, wired, shapes, weights, cost)
        lanes = Lanes(binder, transport, cost, self._task.device)
        self._world.end_first(lanes.drive.close)
        return lanes
