"""A stage whose forwards and backwards are CUDA graphs, replayed for each microbatch.

    steps 0, 1   as any stage: kernels are loaded, what draws is noted, what cannot be replayed is
                 refused
    step 2       the first microbatches that are in flight together are captured, each in a frame
    later        copy what comes in, replay

A replay launches the kernels that the stage itself would launch, so every bit is the same. Inputs
and gradients are copied in. Outputs stay where they are until the frame's backward: whoever reads
them has done so by then, since that backward needs what its readers send back. Gradients of inputs
are copied out, as nothing says when they are read; so are losses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from weft.errors import WeftError
from weft.runtime.losses import LossShare
from weft.runtime.stage import capturable
from weft.runtime.stage.borders import Gradients, Passed
from weft.runtime.stage.captures import Capturer
from weft.runtime.stage.draws import choosing, noting, stretches_of
from weft.runtime.stage.frames import Frame, Signature, copies, described, is_dense
from weft.runtime.stage.locks import OPEN, Locks
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.replays import Replays
from weft.runtime.stage.role import Role
from weft.runtime.stage.seeds import base_of
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.stage.versioned import StashVersions

MOST_SIGNATURES = 8  # of inputs that are captured; others run as in any stage

Judged: TypeAlias = tuple[Value, LossShare, float | None]  # by its target, share and scale


class Judge(Protocol):
    """The loss of the last stage, which reads what it judges by from fixed memory."""

    @property
    def loss(self) -> Any:
        """As its user gave it."""

    def terms(self, number: int) -> Judged:
        """What a microbatch is judged by."""

    def begin(
        self, number: int, target: Value, share: LossShare, scale: Callable[[], float] | None = None
    ) -> None:
        """Let a microbatch be judged by these."""


class Graphed(Stage):
    """One copy of one stage, captured by signature of its inputs.

    judge          on the last stage: its loss, with the target, share and scale of a microbatch
    ends_at_input  whether a microbatch ends with the gradients of its inputs: no weight learns
    """

    def __init__(
        self,
        module: nn.Module,
        draw: Draw,
        role: Role,
        capturer: Capturer,
        *,
        judge: Judge | None,
        ends_at_input: bool = False,
    ) -> None:
        super().__init__(module, draw, role)
        self._capturer, self._judge, self._ends_at_input = capturer, judge, ends_at_input
        self._replays = Replays(module, role.index, self._device, capturer)
        self._signatures: dict[object, Signature] = {}
        self._frames: dict[int, Frame] = {}  # of the microbatches in flight
        self._plain: set[int] = set()  # microbatches in flight without one
        self._way: Mapping[str, object] = {}  # how the module computes
        self._is_looked_at = False  # whether the module was, in the step at hand

    @property
    def in_flight(self) -> int:
        return len(self._frames) + len(self._plain)

    def begin(self, locks: Locks = OPEN, shapes: StageShapes | None = None) -> None:
        super().begin(locks, shapes)
        self._is_looked_at = False

    def forget(self) -> None:
        super().forget()
        if not all(frame.is_complete for frame in self._frames.values()):
            self._drop()
        for microbatch in [*self._frames]:
            self._release(microbatch)
        self._plain.clear()

    def forward(
        self,
        microbatch: int,
        values: Sequence[Value],
        *,
        versions: StashVersions = (),
        is_divided: bool = False,
        is_recomputed: bool = False,
        is_offloaded: bool = False,
    ) -> Value:
        if is_recomputed or is_offloaded:
            raise WeftError(f"stage {self.index} is captured, so it keeps what its backward needs")
        if not self._is_looked_at:
            self._look()
        judged = self._judge.terms(microbatch) if self._judge is not None else None
        signature = self._signature(values, judged, is_divided)
        forward = partial(super().forward, microbatch, versions=versions, is_divided=is_divided)
        frame = self._frame(signature)
        if frame is None:
            return self._run_plainly(microbatch, signature, values, forward)
        self._frames[microbatch] = frame
        frame.seed(base_of(self._draw.seed, *self._draw.place(microbatch)))
        leaves = [leaf for value in values for leaf in value.leaves]
        targets = judged[0].leaves if judged is not None else ()
        value: Value = self._replays.run(
            frame,
            "forward",
            [*leaves, *targets],
            partial(self._forward_again, microbatch, frame, values, judged, forward),
        )
        return value.cloned() if judged is not None else value

    def backward(self, microbatch: int, gradients: Gradients) -> Passed:
        frame = self._frames.get(microbatch)
        if frame is None:
            return self._backward_plainly(microbatch, gradients)
        work = partial(self._without_forwards, partial(super().backward, microbatch))
        found = self._replays.run(frame, "backward", gradients, work, self._weights)
        self._end(microbatch)
        return copies(found)

    def input_grad(self, microbatch: int, gradients: Gradients) -> Passed:
        frame = self._frames.get(microbatch)
        if frame is None:
            if self._ends_at_input:
                self._plain.discard(microbatch)
            return super().input_grad(microbatch, gradients)
        work = partial(self._without_forwards, partial(super().input_grad, microbatch))
        found = self._replays.run(frame, "input gradient", gradients, work)
        if self._ends_at_input:
            self._end(microbatch)
        return copies(found)

    def weight_grad(self, microbatch: int) -> None:
        frame = self._frames.get(microbatch)
        if frame is None:
            super().weight_grad(microbatch)
            self._plain.discard(microbatch)
            return
        work = partial(super().weight_grad, microbatch)
        self._replays.run(frame, "weight gradient", (), lambda _: work(), self._weights)
        self._end(microbatch)

    # without a graph

    def _look(self) -> None:
        """See what the module is like in this step; what was captured of another is of no use."""
        self._is_looked_at = True
        capturable.refuse_python(self.module, self.index, self._cast())
        way = self._way_now()
        if way != self._way:
            self._way = way
            if self._signatures:
                self._drop()
            self._signatures.clear()

    def _way_now(self) -> Mapping[str, object]:
        """How the module computes by now, and the loss with which it ends."""
        loss = {} if self._judge is None else capturable.way_of_loss(self._judge.loss)
        return {**capturable.way_of(self.module), **loss}

    def _run_plainly(
        self,
        microbatch: int,
        signature: Signature,
        values: Sequence[Value],
        forward: Callable[[Sequence[Value]], Value],
    ) -> Value:
        """As any stage; with its own copy of what it reads, which may be in another's frame."""
        self._plain.add(microbatch)
        if not self._draw.is_watching(self._draw.step):
            values = [value.cloned() for value in values]
        before = self._way_now()
        with noting(self._draw, self._capturer, self.index) as noted:
            value = forward(values)
        stretches = stretches_of(self._saved[microbatch].drawn, noted)
        after = self._way_now()
        if signature.runs:
            capturable.refuse_change(self.index, before, after)
            if stretches != signature.stretches or len({*stretches}) < len(stretches):
                capturable.refuse_other_draws(self.index)
        elif before != after:  # something was made when it was first needed
            self._way = after
            self._drop()
        signature.stretches = stretches
        signature.runs += 1
        return value

    def _backward_plainly(self, microbatch: int, gradients: Gradients) -> Passed:
        found = super().backward(microbatch, gradients)
        self._plain.discard(microbatch)
        capturable.refuse_sparse(self.index, dict(self.module.named_parameters()))
        return found

    # frames

    def _signature(
        self, values: Sequence[Value], judged: Judged | None, is_divided: bool
    ) -> Signature:
        """What is known of forwards that are given such values."""
        given = [*values, judged[0]] if judged is not None else [*values]
        leaves = [leaf for value in given for leaf in value.leaves]
        numbers = judged[1:] if judged is not None else None
        structures = tuple(value.structure for value in given)
        key = structures, described(leaves), is_divided, numbers
        found = self._signatures.get(key)
        if found is None:
            found = Signature(self._draw.step, is_dense(leaves))
            if len(self._signatures) < MOST_SIGNATURES:
                self._signatures[key] = found
        return found

    def _frame(self, signature: Signature) -> Frame | None:
        """A frame for a forward, if it can be replayed or captured by now.

        What runs without a graph, or was captured before, keeps torch's accumulation nodes, which
        belong to another stream than that of a new capture.
        """
        step = self._draw.step
        is_new = signature.since == step or self._draw.is_watching(step)
        if is_new or not signature.is_dense:
            return None
        if signature.free:
            return signature.free.pop()
        if self._plain or any(frame.way is not self._way for frame in self._frames.values()):
            return None
        if self._graphs.is_reentrant:
            capturable.refuse_checkpoint(self.index)
        if not any(one.free for one in self._signatures.values()) and not self._frames:
            gc.collect()  # the same for what only garbage keeps
        generators = [self._capturer.generator() for _ in signature.stretches]
        kept = capturable.tensors_of(self.module)
        return Frame(signature, self._way, self._capturer.pool(), generators, kept)

    def _drop(self) -> None:
        """Give up all frames, and those in flight once they have ended."""
        self._way = dict(self._way)  # equal, but another: frames know theirs
        self._capturer.renew()
        for signature in self._signatures.values():
            signature.free.clear()

    def _end(self, microbatch: int) -> None:
        self._frames[microbatch].is_complete = True
        self._release(microbatch)

    def _release(self, microbatch: int) -> None:
        frame = self._frames.pop(microbatch)
        if frame.is_complete and frame.way is self._way:
            frame.signature.free.append(frame)

    # captures

    def _forward_again(
        self,
        microbatch: int,
        frame: Frame,
        values: Sequence[Value],
        judged: Judged | None,
        forward: Callable[[Sequence[Value]], Value],
        given: Sequence[Tensor],
    ) -> Value:
        """A forward that reads fixed memory, and draws from the generators of a frame."""
        leaves, inputs = iter(given), []
        for value in values:
            inputs.append(value.with_leaves([next(leaves) for _ in value.leaves]))
        if judged is not None and self._judge is not None:
            target, share, scale = judged
            self._judge.begin(
                microbatch,
                target.with_leaves(leaves),
                share,
                None if scale is None else lambda: scale,
            )
        generators = dict(zip(frame.signature.stretches, frame.generators, strict=True))
        with choosing(self._draw, self._capturer, generators):
            return forward(inputs)

    def _without_forwards(self, work: Callable[[Gradients], Passed], given: Gradients) -> Passed:
        with capturable.without_forwards(self.index):
            return work(given)
