"""Program: who does what in which order, without time.

A program is lanes of actions. Nothing in it says when; idleness appears only in a Timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.ir.actions import Action, Actions, Column, Index, Pair
from weft.ir.checks import refuse_malformed
from weft.ir.digest import digest_of
from weft.ir.earliest import Precedence, Seconds
from weft.ir.expert_groups import PipeGroups
from weft.ir.graph import Graph
from weft.ir.kinds import EDGE_END, Kind, Stream
from weft.ir.lanes import Lane, Period
from weft.ir.placement import Placement
from weft.ir.values import Dependencies, Value, resolve
from weft.ir.weights import Sharing, StageGroups

Content: TypeAlias = Actions | Iterable[Action | Pair]


@dataclass(frozen=True, eq=False)
class Program:
    """All lanes of all devices, the graph they compute and where its stages live.

    `microbatches` counts one step; `pipe_of[microbatch mod step]` is the pipe of a microbatch.
    `is_stashing` is False where a method lets backward use newer weights than forward did.
    `parts` of its microbatches make one of ordinary size, where a method cuts them up.
    `ties` are stages that share a weight, in model order: the first is its home. `norms` are
    stages whose updates wait for one norm of their gradients. `expert_groups` are pipes that hold
    some of the experts each, in the order of these, and exchange tokens.
    """

    name: str
    graph: Graph
    placement: Placement
    microbatches: int
    pipe_of: tuple[int, ...]
    lanes: tuple[Lane, ...]
    bounds: Index = field(repr=False)  # lane i holds actions bounds[i] : bounds[i + 1]
    actions: Actions = field(repr=False)
    period: Period | None = None
    is_stashing: bool = True
    parts: int = 1
    ties: StageGroups = ()
    norms: StageGroups = ()
    expert_groups: PipeGroups = ()

    @classmethod
    def build(
        cls,
        name: str,
        placement: Placement,
        lanes: Mapping[Lane, Content] | Iterable[Content],
        *,
        microbatches: int,
        graph: Graph | None = None,
        pipe_of: Iterable[int] | None = None,
        period: Period | None = None,
        is_stashing: bool = True,
        parts: int = 1,
        ties: Iterable[Iterable[int]] = (),
        norms: Iterable[Iterable[int]] = (),
        expert_groups: Iterable[Iterable[int]] = (),
    ) -> Program:
        """A program from lanes: a mapping, or one compute lane for each device in order."""
        if not isinstance(lanes, Mapping):
            lanes = {Lane(device): content for device, content in enumerate(lanes)}
        contents = [
            content if isinstance(content, Actions) else Actions.collect(content)
            for content in lanes.values()
        ]
        pipes = tuple(pipe_of) if pipe_of is not None else (0,) * microbatches
        return cls(
            name=name,
            graph=graph or Graph.chain(placement.stages),
            placement=placement,
            microbatches=microbatches,
            pipe_of=pipes,
            lanes=tuple(lanes),
            bounds=np.cumsum([0, *map(len, contents)], dtype=np.int64),
            actions=_with_pipes(Actions.concatenate(contents), np.array(pipes, np.int32)),
            period=period,
            is_stashing=is_stashing,
            parts=parts,
            ties=tuple(map(tuple, ties)),
            norms=tuple(map(tuple, norms)),
            expert_groups=tuple(map(tuple, expert_groups)),
        )

    def __post_init__(self) -> None:
        refuse_malformed(self)

    # what is where

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.placement.devices

    @property
    def stages(self) -> int:
        """How many stages the graph has."""
        return len(self.graph)

    @property
    def sharing(self) -> Sharing:
        """What several stages share."""
        return Sharing(self.ties, self.norms)

    def __len__(self) -> int:
        return len(self.actions)

    def lane(self, index: int) -> Actions:
        """The actions of one lane, in order."""
        return self.actions.take(slice(int(self.bounds[index]), int(self.bounds[index + 1])))

    def contents(self) -> dict[Lane, Actions]:
        """Every lane with its actions, as `build` takes them."""
        return {lane: self.lane(index) for index, lane in enumerate(self.lanes)}

    @cached_property
    def lane_of(self) -> Index:
        """For each action, the index of its lane."""
        return np.repeat(np.arange(len(self.lanes)), np.diff(self.bounds))

    @cached_property
    def device_of(self) -> Column:
        """For each action, the device whose lane it stands in."""
        devices = np.array([lane.device for lane in self.lanes], np.int32)
        return devices[self.lane_of]

    @cached_property
    def is_on_compute(self) -> NDArray[np.bool_]:
        """For each lane, whether it is a device's compute stream."""
        return np.array([lane.stream is Stream.COMPUTE for lane in self.lanes], np.bool_)

    @cached_property
    def slot_of(self) -> Index:
        """For each action, its slot: the pair it belongs to, or itself."""
        return np.cumsum(self.actions.joined == 0) - 1

    @cached_property
    def first_of_slot(self) -> Index:
        """For each slot, its first action."""
        return np.flatnonzero(self.actions.joined == 0)

    def slots_of(self, lane: int) -> Index:
        """The slots of one lane, in order."""
        return np.arange(*np.searchsorted(self.first_of_slot, self.bounds[lane : lane + 2]))

    @cached_property
    def steps(self) -> int:
        """Optimizer steps the listed microbatches belong to."""
        has_microbatch = self.actions.microbatch >= 0
        if not has_microbatch.any():
            return 1
        last = int((self.actions.microbatch + self.actions.span)[has_microbatch].max()) - 1
        return max(1, last // self.microbatches + 1)

    @cached_property
    def dependencies(self) -> Dependencies:
        """Who reads whose values: the one answer to "when may an action start?"."""
        return resolve(
            self.graph,
            self.actions,
            microbatches=self.microbatches * self.steps,
            step=self.microbatches,
            pipe_of=self.pipe_of,
            sharing=self.sharing,
            expert_groups=self.expert_groups,
        )

    def precedence(self, delay: Seconds) -> Precedence:
        """What each slot waits for: values, with these travel times, and its turn on one wire."""
        dependencies, apart = self.dependencies, ~self.is_fused
        sends, before = self.turns
        return Precedence(
            bounds=np.searchsorted(self.first_of_slot, self.bounds),
            consumer=self.slot_of[np.append(dependencies.consumer[apart], sends)],
            producer=self.slot_of[np.append(dependencies.producer[apart], before)],
            delay=np.append(delay[apart], np.zeros(len(sends))),
        )

    @cached_property
    def turns(self) -> tuple[Index, Index]:
        """Sends on one wire, and for each what the other device's wire carries before its receive.

        A send waits until its receive is reached, so it cannot start before that has ended.
        """
        is_one_wire = np.array([lane.is_one_wire for lane in self.lanes], np.bool_)
        none = np.empty(0, np.int64)
        if not is_one_wire.any():
            return none, none
        rows = np.flatnonzero(self.dependencies.value == Value.MESSAGE)
        send, receive = self.dependencies.producer[rows], self.dependencies.consumer[rows]
        meets = is_one_wire[self.lane_of[send]] & is_one_wire[self.lane_of[receive]]
        follows = receive > self.bounds[self.lane_of[receive]]
        return send[meets & follows], receive[meets & follows] - 1

    @cached_property
    def is_fused(self) -> NDArray[np.bool_]:
        """For each dependency, whether it runs from R to B inside a slot of the two."""
        consumer, producer = self.dependencies.consumer, self.dependencies.producer
        if not self.actions.joined.any():
            return np.zeros(len(consumer), np.bool_)
        is_inside = (self.actions.joined[consumer] == 1) & (producer == consumer - 1)
        return np.asarray(is_inside & (self.actions.kind[producer] == Kind.R))

    @cached_property
    def crossing(self) -> NDArray[np.bool_]:
        """For each dependency, whether an activation or gradient goes to another device."""
        dependencies = self.dependencies
        source = self.device_of[dependencies.producer]
        is_remote = source != self.device_of[dependencies.consumer]
        travels = np.isin(dependencies.value, (Value.ACTIVATION, Value.GRADIENT))
        return np.asarray(is_remote & travels)

    @cached_property
    def origin(self) -> Index:
        """For each send or receive, the computation whose value it carries; else the action."""
        is_wire = np.isin(self.actions.kind, list(EDGE_END))
        source = np.arange(len(self))
        reads = is_wire[self.dependencies.consumer]
        source[self.dependencies.consumer[reads]] = self.dependencies.producer[reads]
        return np.asarray(source[source])  # a receive reads a send, and that a computation

    @cached_property
    def far_end(self) -> Column:
        """For each send or receive, the device at its other end; -1 for other actions."""
        far, actions = np.full(len(self), -1, np.int32), self.actions
        edges = np.array(self.graph.edges, np.int64).reshape(-1, 2)
        for kind, end in EDGE_END.items():
            rows = np.flatnonzero(actions.kind == kind)
            stage = edges[actions.edge[rows], 1 - end]
            far[rows] = self.placement.table[actions.pipe[rows], stage]
        return far

    @property
    def messages(self) -> int:
        """Values that travel from device to device."""
        sends = np.isin(self.actions.kind, (Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT))
        return int(sends.sum()) or int(self.crossing.sum())

    # changes

    def with_lanes(self, lanes: Mapping[Lane, Content], **changes: object) -> Program:
        """The same program with other lanes."""
        kept = {
            "period": self.period,
            "is_stashing": self.is_stashing,
            "ties": self.ties,
            "norms": self.norms,
            "expert_groups": self.expert_groups,
        }
        return Program.build(
            self.name,
            self.placement,
            lanes,
            microbatches=self.microbatches,
            graph=self.graph,
            pipe_of=self.pipe_of,
            parts=self.parts,
            **(kept | changes),  # type: ignore[arg-type]
        )

    @property
    def total(self) -> int:
        """Actions in full, however often the body repeats."""
        again = sum(self.period.body) * (self.period.repeats - 1) if self.period else 0
        return len(self) + again

    def unrolled(self, repeats: int | None = None) -> Program:
        """Prologue, the body as often as it repeats (or `repeats` times), epilogue, in full.

        A program without a period is all body; its repetitions are further steps.
        """
        period = self.period or Period(
            prologue=(0,) * len(self.lanes),
            body=tuple(int(n) for n in np.diff(self.bounds)),
            microbatches=self.microbatches,
        )
        repeats = period.repeats if repeats is None else repeats
        if repeats < 1:
            raise InputError(f"{self.name}: a body runs at least once, not {repeats} times")
        lanes: dict[Lane, Content] = {}
        for index, (lane, actions) in enumerate(self.contents().items()):
            start = period.prologue[index]
            rows = np.arange(len(actions))
            prologue, body, epilogue = np.split(rows, [start, start + period.body[index]])
            turns = np.repeat(np.arange(repeats), len(body))
            shown = np.concatenate([prologue, np.tile(body, repeats), epilogue])
            turn = np.concatenate([0 * prologue, turns, 0 * epilogue + repeats - 1])
            lanes[lane] = period.shifted(actions.take(shown), turn)
        return self.with_lanes(lanes, period=None)

    def renamed(self, name: str) -> Program:
        """The same program under another name."""
        return replace(self, name=name)

    # identity

    @cached_property
    def digest(self) -> str:
        """What ranks compare before they run: equal programs have equal digests."""
        return digest_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _with_pipes(actions: Actions, pipes: Column) -> Actions:
    """A microbatch belongs to one pipe, whatever the action said."""
    follows = (actions.microbatch >= 0) & (actions.kind <= Kind.ONLOAD)
    if not follows.any() or not (pipes.any() or actions.pipe[follows].any()):
        return actions
    own = pipes[actions.microbatch % len(pipes)]
    return actions.replace(pipe=np.where(follows, own, actions.pipe))
