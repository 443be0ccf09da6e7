"""Sizes: the shape that is asked for, with the defaults of the schedule, within limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.placement import Placement
from weft.ir.program import Program
from weft.notation import read_graph
from weft.request.values import COUNT, MOST_COUNT, TEXT, Bundle, Whole, given, read
from weft.schedules import Schedule, Shape

DEVICES = 4
UPDATES = 4
MICROBATCHES_OF_GRAPH = 8
MOST_STAGES = 65_536


@dataclass(frozen=True, slots=True)
class Sizes(Bundle):
    """The shape that was asked for; None where the default depends on the schedule."""

    devices: int | None = given(COUNT)
    microbatches: int | None = given(COUNT)
    stages_per_device: int | None = given(COUNT)
    variant: str = given(TEXT, "")
    pipes: int = given(COUNT, 1)
    updates: int | None = given(COUNT)
    round: int | None = given(COUNT)
    graph: str | None = given(TEXT)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be asked for; `remedy` is what to do about more.

    A proof takes some 600 bytes for each action.
    """

    actions: int = 20_000_000
    devices: int = MOST_COUNT
    microbatches: int = MOST_COUNT
    stages_per_device: int = MOST_COUNT
    updates: int = MOST_COUNT
    remedy: str = "Weft takes {most:,}. Ask for fewer of either."

    def check(self, shape: Shape, *, steps: int) -> None:
        """Refuse what would take more memory or time than there is, before it is taken."""
        for name in ("devices", "microbatches", "stages_per_device", "updates"):
            read(Whole(most=getattr(self, name)), getattr(shape, name), name)
        _check_stages(shape.stages)
        actions = 2 * shape.stages * max(shape.microbatches, shape.pipes) * steps
        if actions > self.actions:
            raise InputError(
                f"{shape.stages:,} stages and {shape.microbatches:,} microbatches make {actions:,}"
                f" actions or more; {self.remedy.format(most=self.actions)}"
            )

    def unfolded(self, program: Program) -> Program:
        """The program in full, however often its body repeats."""
        if program.total > self.actions:
            raise InputError(
                f"{program.name} has {program.total:,} actions;"
                f" {self.remedy.format(most=self.actions)}"
            )
        return program.unrolled() if program.period else program


def shape_of(schedule: Schedule, sizes: Sizes, limits: Limits) -> Shape:
    """The shape asked for, with the schedule's own defaults."""
    graph, placement = _graph_of(sizes.graph) if sizes.graph else (None, None)
    devices = _devices(sizes.devices, graph, placement)
    default = MICROBATCHES_OF_GRAPH if graph else 2 * devices
    shape = Shape(
        devices=devices,
        microbatches=sizes.microbatches or default,
        stages_per_device=sizes.stages_per_device or schedule.stages_for(),
        pipes=sizes.pipes,
        updates=sizes.updates or UPDATES,
        round=sizes.round or 0,
        variant=sizes.variant,
        graph=graph,
        placement=placement,
    )
    if sizes.updates is not None and not schedule.is_asynchronous:
        raise InputError(f"{schedule.name} is synchronous: every step ends with its update;"
                         " leave out --updates")  # fmt: skip
    limits.check(shape, steps=shape.updates if schedule.is_asynchronous else 1)
    return shape


def _devices(given: int | None, graph: Graph | None, placement: Placement | None) -> int:
    if graph is None:
        return given or DEVICES
    devices = placement.devices if placement else len(graph)
    if given is not None and given != devices:
        raise InputError(f"--graph needs {devices} devices, not {given}; leave out --devices")
    return devices


def _graph_of(text: str) -> tuple[Graph, Placement | None]:
    if text == "inception":
        return Graph.inception(), None
    if towers := re.fullmatch(r"two-tower:([0-9]{1,9})", text):
        _check_stages(2 * int(towers[1]) + 1)
        return Graph.two_tower(int(towers[1])), None
    if not Path(text).exists() and not Path(text).suffix:
        raise InputError(f"--graph {text}: neither two-tower:T nor inception nor a JSON file")
    graph, placement = read_graph(text)
    return graph, None if placement == Placement.straight(len(graph)) else placement


def _check_stages(stages: int) -> None:
    if stages > MOST_STAGES:
        raise InputError(f"{stages:,} stages; Weft takes {MOST_STAGES:,} at most")
