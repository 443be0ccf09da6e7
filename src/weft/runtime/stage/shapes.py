"""Shapes: those of all values that pass between stages, and their types, without computing any.

Where a stage has no outline, its shapes are not known, and travel with the messages; so do those of
gradients in a first run, as only that shows which of them there are. Of what a stage returns, the
rank that has it knows best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import TypeAlias

import torch
from torch import nn

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Direction
from weft.runtime.losses import LossFunction
from weft.runtime.precision import FULL, Precision
from weft.runtime.stage.cast import Cast
from weft.runtime.stage.modules import is_compiled
from weft.runtime.stage.outline import Misfit, Outline, faked, is_misfit, outlined, outlining
from weft.runtime.stage.values import Carries, Structure, Value
from weft.runtime.transport.message import Layout, Message, Shapes, layout_of

Outlines: TypeAlias = list[Outline | None]  # of every stage
Edge: TypeAlias = tuple[int, Layout]  # and what is sent along it


class StageShapes:
    """Shapes of every message of a run, where the stages have outlines.

    All stages are outlined as if they were on the device of those that this process holds.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        graph: Graph,
        loss: LossFunction,
        device: torch.device,
        precision: Precision = FULL,
        carries: Carries | None = None,
    ) -> None:
        self.carries: Carries = carries or {}
        self.stages, self._graph, self._loss = stages, graph, loss
        self._device, self._precision = device, precision
        self._is_compiled = any(is_compiled(one) for stage in stages for one in stage.modules())
        self._weights = [weight for stage in stages for weight in stage.parameters()]
        self._known: dict[object, Outlines] = {}
        self._judged: set[object] = set()  # what the loss was tried with
        self._keys: dict[int, object] = {}  # of the microbatches at hand
        self._found: dict[int, dict[int, Layout | None]] = {}  # by microbatch and edge, outlined
        self._learned: dict[Message, Layout | None] = {}  # from other ranks, in the run at hand
        self._gradients: dict[Edge, Layout] = {}
        self._seen: dict[Edge, Layout] = {}  # in the run at hand

    def begin(self, inputs: Sequence[Value], targets: Sequence[Value] | None) -> None:
        """Take a run's microbatches; refuse shapes that do not fit the stages or the loss."""
        self._keys.clear()
        for edge, layout in self._seen.items():
            self._gradients[edge] = _joined(self._gradients.get(edge, layout), layout)
        self._seen.clear()
        self.go_on(range(len(inputs)), inputs, targets)

    def go_on(
        self, numbers: Iterable[int], inputs: Sequence[Value], targets: Sequence[Value] | None
    ) -> None:
        """Take further microbatches under these numbers; only their inputs decide shapes."""
        way = self._way()
        for index, (number, data) in enumerate(zip(numbers, inputs, strict=True)):
            key = layout_of(data.packed()), way
            if key not in self._known:
                self._known[key] = self._outlines(data)
            if targets is not None:
                self._judge(key, data, targets[index])
            self._keys[number], self._found[number] = key, {}

    def changes_inputs(self, stage: int) -> bool:
        """Whether a stage changes what it is given in place, as far as is known."""
        return any(one is None or one.changes_inputs for one in self._of_run(stage))

    def changed_by(self, stage: int) -> int | None:
        """A reader of a stage that is known to change what it is given in place."""
        for reader in self._graph.successors[stage]:
            if any(one is not None and one.changes_inputs for one in self._of_run(reader)):
                return reader
        return None

    def disturbed_by(self, stage: int) -> int | None:
        """The reader, if there is one, for which torch treats hooks of a value in another way.

        It changes the value in place, or differentiates by it in its forward; or may do so, as
        nothing is known of it.
        """
        for reader in self._graph.successors[stage]:
            for one in self._of_run(reader):
                if one is None or one.changes_inputs or one.differentiates:
                    return reader
        return None

    def casts(self, stage: int) -> bool:
        """Whether a stage casts values, as autocast does, as far as is known."""
        return any(one is None or one.casts for one in self._of_run(stage))

    def repeated(self, stage: int) -> set[str] | None:
        """The weights that a stage uses more than once; None where that is not known."""
        found = set[str]()
        for one in self._of_run(stage):
            if one is None:
                return None
            found.update(one.repeated)
        return found

    def _of_run(self, stage: int) -> Iterator[Outline | None]:
        """The outlines of a stage in the run at hand."""
        for key in dict.fromkeys(self._keys.values()):
            yield self._known[key][stage]

    def structure(self, stage: int, microbatch: int) -> Structure | None:
        """How what a stage returns is made up; None where that is not known."""
        outline = self._known[self._keys[microbatch]][stage]
        return None if outline is None else outline.value.structure

    def of(self, message: Message) -> Shapes:
        """The shapes of a message in the run at hand."""
        is_gradient = message.direction is Direction.GRADIENT
        return _Gradient(self, message) if is_gradient else _Activation(self, message)

    def activation(self, message: Message) -> Layout | None:
        found = self._found[message.microbatch]
        if message.edge not in found:
            edge = self._graph.edges[message.edge]
            outline = self._known[self._keys[message.microbatch]][edge[0]]
            layout = None if outline is None else outline.layout(self.carries.get(edge))
            found[message.edge] = layout
        return found[message.edge]

    def learn_activation(self, message: Message, layout: Layout | None) -> None:
        """Take what another rank knows of what it sends."""
        self._learned[message] = layout

    def gradient(self, message: Message) -> Layout | None:
        edge = self._edge(message)
        return None if edge is None else self._gradients.get(edge)

    def see_gradient(self, message: Message, layout: Layout) -> None:
        """Both ends see the same in a run, and know in the next what there may be."""
        edge = self._edge(message)
        if edge is not None:
            self._seen[edge] = _joined(self._seen.get(edge, layout), layout)

    def _edge(self, gradient: Message) -> Edge | None:
        """The same at both ends; nothing where shapes depend on the data."""
        message = gradient._replace(direction=Direction.ACTIVATION)
        layout = self._learned[message] if message in self._learned else self.activation(message)
        return None if layout is None else (message.edge, layout)

    def _way(self) -> object:
        """What changes how stages run, besides shapes: modes, what learns, and autocast."""
        modes = tuple(stage.training for stage in self.stages)
        learning = bytes(weight.requires_grad for weight in self._weights)
        return modes, learning, self._cast

    @property
    def _cast(self) -> Cast:
        return Cast.here(self._device, self._precision)

    def _judge(self, key: object, data: Value, target: Value) -> None:
        """Try the loss, where nobody notices; refuse one that does not fit."""
        last, pair = self._known[key][-1], (key, layout_of(target.packed()))
        if last is None or pair in self._judged or not _is_unnoticed(self._loss):
            return
        try:
            with outlining(is_compiled=self._is_compiled), self._cast.again():
                self._loss(last.value.tree, *faked(target, self._device).arguments)
        except Exception as error:
            if is_misfit(error):  # others cannot run so
                raise self._misfit("the loss", data, error) from error
        self._judged.add(pair)

    def _outlines(self, data: Value) -> Outlines:
        found: Outlines = []
        stage = 0
        try:
            with outlining(is_compiled=self._is_compiled), self._cast.again():
                first = faked(data, self._device)
                for stage, module in enumerate(self.stages):
                    before = [found[other] for other in self._graph.predecessors[stage]]
                    if None in before:
                        found.append(None)
                        continue
                    values = [
                        one.value.picked(self.carries.get((other, stage)))
                        for other, one in zip(self._graph.predecessors[stage], before, strict=True)
                        if one is not None
                    ]
                    is_first = not before
                    given = [first] if is_first else values
                    is_last = not self._graph.successors[stage]
                    found.append(
                        outlined(
                            module,
                            given,
                            self._device,
                            self._precision,
                            is_first=is_first,
                            is_last=is_last,
                        )
                    )
        except Misfit as error:
            raise self._misfit(f"stage {stage}", data, error) from error
        return found

    def _misfit(self, where: str, data: Value, error: Exception) -> InputError:
        shapes = [list(leaf.shape) for leaf in data.leaves]
        return InputError(f"{where} does not fit a microbatch of shape {shapes}: {error}")


def _joined(one: Layout, other: Layout) -> Layout:
    """Gradients of the same value, of which some were not computed."""
    return tuple([b if a is None else a for a, b in zip(one, other, strict=True)])


class _Activation:
    is_agreed = False

    def __init__(self, shapes: StageShapes, message: Message) -> None:
        self._shapes, self._message = shapes, message

    def __call__(self) -> Layout | None:
        return self._shapes.activation(self._message)

    def learn(self, layout: Layout | None) -> None:
        self._shapes.learn_activation(self._message, layout)

    def see(self, layout: Layout) -> None:
        """Outlines say all that is known."""


class _Gradient:
    is_agreed = True

    def __init__(self, shapes: StageShapes, message: Message) -> None:
        self._shapes, self._message = shapes, message

    def __call__(self) -> Layout | None:
        return self._shapes.gradient(self._message)

    def learn(self, layout: Layout | None) -> None:
        """Nobody knows more."""

    def see(self, layout: Layout) -> None:
        self._shapes.see_gradient(self._message, layout)


def _is_unnoticed(loss: object) -> bool:
    """Whether nobody notices that a loss runs: torch's own, or a function without a closure."""
    return is_torchs(loss) or (isinstance(loss, FunctionType) and loss.__closure__ is None)


def is_torchs(loss: object) -> bool:
    """Whether a loss is one of torch's own, or of ours, none of which draws."""
    home = getattr(loss, "__module__", None) or ""
    return home.startswith(("torch.nn.", "weft.runtime.losses"))
