"""The feed: what each rank is given of a batch, and needs.

    first stage    the inputs
    last stage     the targets
    all            the shapes of the inputs: whoever is given none gets them from a rank that is

Where every rank is given the inputs in a first run, shapes are never sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from weft.errors import Disagreement, InputError
from weft.ir.program import Program
from weft.runtime.batch import Cut, Data, check_together, checksum, cut, filled
from weft.runtime.ranks.world import World
from weft.runtime.stage.calling import refuse_strange
from weft.runtime.stage.values import Value
from weft.runtime.transport.message import TensorShape, layout_of, read, written

HEAD = struct.Struct("<I?")  # microbatches that were given, and whether the user has cut them
LENGTH = struct.Struct("<I")
END = object()  # of a loader

Cutting: TypeAlias = Callable[[Data, int, str], Cut]


class GivenData(NamedTuple):
    """What this rank is given for a run, in microbatches; None where it is given nothing."""

    inputs: Cut | None
    targets: Cut | None

    @property
    def wanted(self) -> list[Value] | None:
        """The targets, where there are some."""
        return None if self.targets is None else self.targets.values


class Begun(NamedTuple):
    """A run that all ranks have begun: its inputs, and the number by which they report of it."""

    inputs: Cut
    run: int


class Feed:
    """What this process reads of batches, and how it learns the shapes of what it does not.

    taken     the names that a batch may have; None where it is not known by names
    replicas  that are each given a share of it
    """

    def __init__(
        self,
        program: Program,
        world: World,
        taken: Sequence[str] | None = None,
        replicas: int = 1,
    ) -> None:
        self._taken, self._replicas = taken, replicas
        self._devices = program.devices // replicas
        self._replica = world.devices.start // self._devices
        self._microbatches = program.microbatches // replicas
        self._world, self.gather = world, world.gather
        graph, pipes = program.graph, program.placement.pipes
        self._is_whole = graph.stages[-1].is_whole_batch
        self._reading = _at_once if self._is_whole else filled
        first = [stage for stage, before in enumerate(graph.predecessors) if not before]
        last = [stage for stage, after in enumerate(graph.successors) if not after]
        readers = {int(pipe[stage]) for pipe in pipes for stage in first}
        judges = {int(pipe[stage]) for pipe in pipes for stage in last}
        self.judges = 1 if len(world.devices) > 1 else len(judges)  # processes with a last stage
        self.reads_inputs = not readers.isdisjoint(world.devices)
        self.reads_targets = not judges.isdisjoint(world.devices)
        # who sends shapes, where some are given none
        self._source = min(one for one in readers if one // self._devices == self._replica)
        self._lacking: dict[str, list[int]] = {}  # ranks without inputs, by kind of run
        self._known: tuple[bytes, Cut] | None = None  # what was received last

    def trained(self, batch: Data, target: Data) -> GivenData:
        """What a step is given, cut."""
        self._refuse_lacking(batch, target)
        return self._cut(batch, target, _whole)

    def loaded(self, pairs: Iterator[Any]) -> GivenData | None:
        """What a loader has next, of which the last may be small; None at its end."""
        pair = next(pairs, END)
        if pair is END:
            return None
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(
                f"the loader yields a {type(pair).__name__}; let it yield pairs of a batch and a"
                f" target"
            )
        batch, target = pair
        self._refuse_lacking(batch, target)
        return self._cut(batch, target, self._reading)

    def predicted(self, batch: Data) -> GivenData:
        """The same of a batch without targets."""
        self._refuse_lacking(batch, ())
        return self._cut(batch, None, self._reading)

    def _cut(self, batch: Data, target: Data, cutting: Cutting) -> GivenData:
        inputs = None if batch is None else cutting(batch, self._microbatches, "batch")
        if inputs is not None and self._taken is not None:
            refuse_strange(inputs.values[0], self._taken)
        targets = None if target is None else cutting(target, self._microbatches, "target")
        return GivenData(inputs, targets and self._shared(targets))

    def _shared(self, one: Cut) -> Cut:
        return one.among(self._replicas, self._replica)

    def _refuse_lacking(self, batch: Data, target: Data) -> None:
        """Refuse None for what is read here."""
        for data, is_read, name, stage, fact in (
            (batch, self.reads_inputs, "batch", "first", "reads_inputs"),
            (target, self.reads_targets, "target", "last", "reads_targets"),
        ):
            if data is None and is_read:
                devices = ", ".join(map(str, self._world.devices))
                raise InputError(
                    f"the {name} is None on device {devices}, whose {stage} stage reads it; None is"
                    f" for ranks where pipeline.{fact} is False, and () for a stage or a loss that"
                    f" reads nothing"
                )

    def agree(self, given: GivenData, kind: str) -> None:
        """In a first run of a kind: refuse ranks with different data; note who has no inputs."""
        sums = [None if one is None else checksum(one.values) for one in given]
        shares = self.gather(json.dumps(sums).encode(), "the sums of the first batch")
        first = self._replica * self._devices  # whoever shares the batch of this rank
        found = [json.loads(share) for share in shares[first : first + self._devices]]
        for part in zip(*found, strict=True):
            _refuse_different(part, first)
        lacking = [rank for rank, (inputs, _) in enumerate(found, first) if inputs is None]
        self._lacking[kind] = lacking

    def inputs(self, given: GivenData, kind: str) -> Cut:
        """The inputs of a run; where this rank has none, tensors without memory in their place."""
        inputs = self._known_inputs(given, kind)
        if given.targets is not None and not self._is_whole:
            check_together(inputs, given.targets)
        return self._shared(inputs)

    def _known_inputs(self, given: GivenData, kind: str) -> Cut:
        lacking, devices = self._lacking.get(kind, ()), self._world.devices
        if devices.start in lacking:
            return self._received()
        if given.inputs is None:
            raise InputError(
                f"device {devices.start} is given no batch now, and was in the first {kind}; give"
                f" it one in all of them or in none"
            )
        if lacking and self._source in devices:
            self._world.layouts.send(lacking, _described(given.inputs))
        return given.inputs

    def _received(self) -> Cut:
        content = self._world.layouts.wait(self._source)
        if self._known is None or self._known[0] is not content:
            self._known = content, _outlined(content)
        return self._known[1]


def _whole(data: Data, microbatches: int, name: str) -> Cut:
    return Cut(cut(data, microbatches, name), microbatches, isinstance(data, list))


def _at_once(data: Data, microbatches: int, name: str) -> Cut:
    """For a last stage that takes the whole batch: what it returns is that of the first."""
    return _whole(data, microbatches, name)._replace(given=1)


def _refuse_different(sums: Sequence[str | None], first: int) -> None:
    there = [(rank, one) for rank, one in enumerate(sums, first) if one is not None]
    others = [rank for rank, one in there if one != there[0][1]]
    if others:
        raise Disagreement(
            f"the first batch or target of ranks {others} differ from those of rank {there[0][0]}"
        )


def _described(inputs: Cut) -> bytes:
    """The layout of each microbatch, as bytes."""
    layouts = [written(layout_of(value.packed())) for value in inputs.values]
    parts = [LENGTH.pack(len(layout)) + layout for layout in layouts]
    return HEAD.pack(inputs.given, inputs.is_list) + b"".join(parts)


def _outlined(content: bytes) -> Cut:
    """Microbatches of these layouts, without memory."""
    given, is_list = HEAD.unpack_from(content)
    values, place = [], HEAD.size
    while place < len(content):
        (length,) = LENGTH.unpack_from(content, place)
        place += LENGTH.size
        values.append(_empty(content[place : place + length]))
        place += length
    return Cut(values, given, is_list)


def _empty(layout: bytes) -> Value:
    return Value.unpacked(
        [
            torch.empty(entry.shape, dtype=entry.dtype, device="meta")
            if isinstance(entry, TensorShape)
            else entry
            for entry in read(layout)
        ]
    )
