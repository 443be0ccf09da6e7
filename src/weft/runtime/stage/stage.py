"""A stage at work: one copy of one slice of the model, and what its microbatches have left.

Knows autograd; knows neither devices nor schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.errors import InputError, WeftError
from weft.runtime.stage.buffers import Buffers, Snapshot
from weft.runtime.stage.cast import Cast, without_autocast, without_graph
from weft.runtime.stage.deferred import Apart, Recorder, Tape
from weft.runtime.stage.graphs import Graphs
from weft.runtime.stage.locks import OPEN, Locks
from weft.runtime.stage.randomness import WATCHED, Draw, Drawing, Drawn
from weft.runtime.stage.shapes import StageForms
from weft.runtime.stage.split import called, names_of
from weft.runtime.stage.state import State
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.values import TENSOR, Structure, Value, contiguous, fingerprint, learns
from weft.runtime.weights.versions import Stash, following

Leaves: TypeAlias = tuple[Tensor, ...]
Gradients: TypeAlias = Sequence[Tensor | None]
Passed: TypeAlias = tuple[Tensor | None, ...]
Loss: TypeAlias = Callable[[Any, int], Tensor]
Versions: TypeAlias = tuple[int, ...]


@dataclass(slots=True)
class Saved:
    """What a forward keeps: its inputs, and its outputs with their graph unless recomputed."""

    values: Sequence[Value]
    outputs: Leaves = ()
    tape: Tape | None = None  # of layers that defer their weight gradients
    versions: Versions = ()  # of the weights
    drawn: Drawn | None = None
    buffers: Snapshot | None = None  # as they were, where the forward runs again
    cast: Cast | None = None
    prints: Sequence[float] = ()  # of the outputs, for as long as forwards are watched
    gradients: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)

    @property
    def inputs(self) -> list[Tensor]:
        return [leaf for value in self.values for leaf in value.leaves]


class Stage:
    """One copy of one stage.

    `loss(output, microbatch)` is set on the last stage only: its forward ends with the
    microbatch's weighted loss. Where a stage is split, some backwards come in two halves: these
    defer their weight gradients.

    With `stashes` a forward computes with the `versions` of them that are set, and its backward
    with the same, unless it `is_stashing` nothing: then with the newest.

    `changes_inputs` gives the module copies of its inputs, which it changes in place.
    """

    def __init__(
        self, module: nn.Module, draw: Draw, *, is_first: bool, is_split: bool, index: int = 0
    ) -> None:
        self.module, self.index = module, index
        self._is_first = is_first
        self.loss: Loss | None = None
        self.is_loss_drawing = True
        self._draw = draw
        self._drawing = Drawing([(names_of(module, index), module)], draw, entered_by_hand=module)
        self._recorder = Recorder()
        self._is_deferring = is_split and self._recorder.attach(module)
        self._weights, self._slots = [*module.parameters()], Slots(module)
        self._buffers, self._graphs = Buffers(module), Graphs(index)
        self._state = State(module, index)
        self._saved: dict[int, Saved] = {}
        self.stashes: Sequence[Stash] = ()
        self.versions: Versions = ()
        self.is_stashing = True
        self.changes_inputs, self.has_inputs_alone = False, True
        self._is_casting = True
        self._disturbed_by: int | None = None  # the stage that does so to hooks of its input
        self._structure_of: Callable[[int], Structure | None] = lambda _: None
        self.dtype: torch.dtype | None = None  # of values, where that is not the data's
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def begin(self, locks: Locks = OPEN) -> None:
        """Look at what may have changed since the last step."""
        self._drawing.look()
        versioned = {weight for stash in self.stashes for weight in stash.parameters}
        if versioned and any(w.requires_grad and w not in versioned for w in self._weights):
            raise InputError(
                f"stage {self.index} has a weight that was frozen when the pipeline was made, so"
                f" that it has no versions, and learns now; make the pipeline again"
            )
        self._state.begin(locks, versioned, is_watched=self._draw.step < WATCHED)

    def outline(self, forms: StageForms) -> None:
        """Take what is known of this stage without computing anything."""
        self.changes_inputs = forms.changes_inputs(self.index)
        self._is_casting = forms.casts(self.index)
        self._structure_of = partial(forms.structure, self.index)
        self._disturbed_by = forms.disturbed_by(self.index)
        self._recorder.whole = {id(weight) for weight in self._undeferred(forms)}

    def _undeferred(self, forms: StageForms) -> Iterator[nn.Parameter]:
        """Weights of which it is known, or under autocast may be, that they have several uses."""
        repeated = forms.repeated(self.index)
        is_cast = torch.is_autocast_enabled(self._device.type)
        for name, weight in self.module.named_parameters():
            if name in repeated if repeated is not None else is_cast:
                yield weight

    def forward(
        self,
        microbatch: int,
        values: Sequence[Value],
        *,
        is_divided: bool = False,
        is_recomputed: bool = False,
    ) -> Value:
        """The value that goes to other stages; the weighted loss on the last stage."""
        saved = self._saved[microbatch] = Saved([self._taken(value) for value in values])
        if is_divided and self._is_deferring:
            saved.tape = Tape()
        if self.stashes and self.is_stashing:
            saved.versions = self.versions
            for stash, version in zip(self.stashes, saved.versions, strict=True):
                stash.take(version)
        if is_recomputed:
            saved.cast = Cast.here(self._device)
            saved.buffers = self._buffers.snapshot()  # kernels may be others without a graph
            value = self._run_kept(microbatch, saved).marked()
            saved.prints = self._prints(microbatch, value)
        else:
            value = self._run_kept(microbatch, saved).marked()
            saved.outputs = value.leaves
        self._state.check()
        return Value(tuple([self._handed(leaf) for leaf in value.leaves]), value.structure)

    def infer(self, microbatch: int, values: Sequence[Value]) -> Value:
        """The value alone: nothing is kept for a backward, and no buffer changes."""
        given = Saved([v.with_leaves(map(self._here, v.leaves)) for v in values])
        swap = {name: w for stash in self.stashes for name, w in stash.seen().items()}
        with without_graph():
            value = self._run(microbatch, given, swap | self._buffers.copies())
        self._state.check()
        value = self._as_outlined(microbatch, value)
        return value.with_leaves([self._handed(leaf) for leaf in value.leaves])

    def recompute(self, microbatch: int) -> None:
        """The forward again, from the stored inputs, with the buffers that it had."""
        saved = self._saved[microbatch]
        assert saved.buffers is not None
        value = self._run_kept(microbatch, saved, self._buffers.again(saved.buffers))
        saved.outputs, saved.buffers = value.leaves, None
        if saved.prints and not _are_same(saved.prints, self._prints(microbatch, value)):
            raise WeftError(
                f"stage {self.index} computes something else when microbatch {microbatch} is"
                f" recomputed: it keeps state that is no buffer, or draws from a generator that is"
                f" neither torch's nor an attribute of a module. Register that state, or do not"
                f" recompute this stage"
            )

    def backward(self, microbatch: int, gradients: Gradients) -> Passed:
        """Gradients of the inputs; those of the weights are added to what is there."""
        saved = self._saved.pop(microbatch)
        outputs, grads = self._differentiable(saved.outputs, gradients)
        if outputs and self._graphs.is_reentrant and not self.stashes:
            Tape().play(self._kept_apart(saved, outputs, grads))
        elif outputs:
            with self._going_back(saved):
                _backward(outputs, grads)
        if saved.versions:
            for stash, version in zip(self.stashes, saved.versions, strict=True):
                stash.give_back(version)
        return _passed(saved)

    def input_grad(self, microbatch: int, gradients: Gradients) -> Passed:
        """Gradients of the inputs; what the weights need is kept for `weight_grad`."""
        saved = self._saved[microbatch]
        outputs, grads = self._differentiable(saved.outputs, gradients)
        if outputs:
            saved.gradients = self._kept_apart(saved, outputs, grads)
        passed = _passed(saved)
        saved.outputs, saved.values = (), ()
        return passed

    def weight_grad(self, microbatch: int) -> None:
        """Add what `input_grad` kept to the gradients of the weights."""
        saved = self._saved.pop(microbatch)
        with without_autocast(self._device):
            (saved.tape or Tape()).play(saved.gradients)

    def forget(self) -> None:
        """Drop what is left of a step that did not end."""
        self._saved.clear()
        for stash in self.stashes:
            stash.forget()

    @property
    def in_flight(self) -> int:
        return len(self._saved)

    def _kept_apart(
        self, saved: Saved, outputs: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """The gradients of a backward, not added to what is there."""
        learning = [weight for weight in self._weights if weight.requires_grad]
        with self._going_back(saved), Apart(learning) as found:
            _backward(outputs, grads)
        return found

    # values

    def _taken(self, value: Value) -> Value:
        """A value without history that collects the gradients that somebody wants."""
        leaf, structure = self._leaf, value.structure
        if structure is TENSOR:
            return Value((leaf(value.leaves[0], False),), structure)
        return value.with_leaves(map(leaf, value.leaves, structure.fixed))

    def _leaf(self, value: Tensor, is_fixed: bool) -> Tensor:
        leaf = self._here(value).detach()
        if not self._is_first and not is_fixed and learns(leaf):
            leaf.requires_grad_()
        return leaf

    def _as_outlined(self, microbatch: int, value: Value) -> Value:
        """A value made without a graph, with what its outline knows of gradients."""
        known = None if self.loss is not None else self._structure_of(microbatch)
        is_known = known is not None and known.unmarked == value.structure.unmarked
        return Value(value.leaves, known) if known is not None and is_known else value

    def _here(self, value: Tensor) -> Tensor:
        """A value on the device of this stage's weights, of the type that it computes with."""
        if self.dtype is not None and value.is_floating_point():
            return value.to(self._device, self.dtype)
        return value if value.device == self._device else value.to(self._device)

    def _handed(self, value: Tensor) -> Tensor:
        """A value as others get it: what changes later, such as a buffer, is copied."""
        if value._backward_hooks and self._disturbed_by is not None:
            raise InputError(
                f"stage {self.index} returns a value that it has hooked, and stage"
                f" {self._disturbed_by} changes it in place or differentiates by it, or may do so,"
                f" where torch calls hooks in another way; return a copy of it (.clone())"
            )
        found = contiguous(value)
        is_new = value.grad_fn is not None and value._base is None
        return found if is_new or not self._is_own(found) else found.clone()

    def _is_own(self, value: Tensor) -> bool:
        place = value.untyped_storage().data_ptr()
        own: Iterable[Tensor] = (*self._weights, *self.module.buffers())
        return any(tensor.untyped_storage().data_ptr() == place for tensor in own)

    def _differentiable(
        self, outputs: Leaves, gradients: Gradients
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs that have a gradient to pass on, and those gradients."""
        if self.loss is not None:
            (loss,) = outputs
            return ([loss], [torch.ones_like(loss)]) if loss.requires_grad else ([], [])
        roots, grads = [], []
        for value, grad in zip(outputs, gradients, strict=True):
            if value.requires_grad and grad is not None:
                roots.append(value)
                grads.append(self._here(grad))
        return roots, grads

    def _marks(self, microbatch: int, swap: dict[str, Tensor]) -> list[object]:
        """By which to see that weights with versions have changed, if only in their data."""
        weights = [swap[name] for stash in self.stashes for name in stash.names if name in swap]
        step, _ = self._draw.place(microbatch)
        prints = [fingerprint(weight) for weight in weights] if step < WATCHED else []
        return [[weight._version for weight in weights], prints]

    def _prints(self, microbatch: int, value: Value) -> Sequence[float]:
        step, _ = self._draw.place(microbatch)
        if step >= WATCHED or (self.stashes and not self.is_stashing):
            return ()  # or the weights have changed since
        with torch.no_grad():
            return [fingerprint(leaf) for leaf in value.leaves]

    # running

    def _leaves(self, saved: Saved) -> dict[str, Tensor]:
        """The weights of a forward, where there are versions of them."""
        if self.is_stashing:
            versions = zip(self.stashes, saved.versions, strict=True)
            return {n: leaf for stash, v in versions for n, leaf in stash.leaves(v).items()}
        return {n: w for stash in self.stashes for n, w in stash.leaves(stash.newest).items()}

    def _run_kept(
        self, microbatch: int, saved: Saved, buffers: dict[str, Tensor] | None = None
    ) -> Value:
        """A forward whose graph is kept for the backward."""
        swap = {**self._leaves(saved), **(buffers or {})}
        is_following = bool(self.stashes) and not self.is_stashing
        with following(self.stashes) if is_following else nullcontext():
            value = self._run(microbatch, saved, swap)
        if not self._graphs.are_known:
            self._graphs.check(value.leaves, self._known(saved, swap))
        if self._graphs.is_reentrant and is_following:
            self._refuse_checkpoint()
        return value

    def _known(self, saved: Saved, swap: dict[str, Tensor]) -> list[Tensor]:
        """All that this stage may learn by."""
        return [*saved.inputs, *self._weights, *swap.values(), self._recorder.anchor]

    def _run(self, microbatch: int, saved: Saved, swap: dict[str, Tensor]) -> Value:
        """A forward with these weights and buffers in place of the module's own."""
        given = saved.values
        if self.changes_inputs or self._is_casting:
            own = torch.clone if self.changes_inputs else _passed_on
            given = [value.with_leaves(map(own, value.leaves)) for value in given]
        before = self._marks(microbatch, swap) if self.stashes else None
        self._recorder.tape = saved.tape
        try:
            with self._going_forward(microbatch, saved, swap) as saved.drawn:
                out = called(self.module, given)
                if self.loss is not None:
                    if saved.drawn is not None:
                        self._draw.enter_loss()
                    out = self.loss(out, microbatch)
        finally:
            self._recorder.tape = None
        self._check_inputs(given)
        if self.stashes and before != self._marks(microbatch, swap):
            raise InputError(
                f"stage {self.index} changes a weight in its forward, of which this program"
                f" keeps several versions; use a schedule that flushes"
            )
        return Value.of(out, f"what stage {self.index} returns")

    def _check_inputs(self, given: Sequence[Value]) -> None:
        """Refuse a change that the other readers of a value might see, or not."""
        if self.has_inputs_alone or not self.changes_inputs:
            return
        if any(leaf._version for value in given for leaf in value.leaves):
            raise InputError(
                f"stage {self.index} changes its input in place, which another stage reads too;"
                f" let it change a copy (.clone())"
            )

    def _going_forward(
        self, microbatch: int, saved: Saved, swap: dict[str, Tensor]
    ) -> AbstractContextManager[Drawn | None]:
        """Where a forward runs: what it draws is keyed."""
        is_drawing = bool(self._drawing) or (self.loss is not None and self.is_loss_drawing)
        drawing: AbstractContextManager[Drawn | None] = (
            self._draw.forward(microbatch, self.index, self._device, self._drawing.by_hand)
            if is_drawing
            else nullcontext()
        )
        if not swap and saved.cast is None:
            return drawing
        cast = saved.cast or Cast.here(self._device)
        return _together(drawing, cast.again(), self._slots.holding(swap))

    def _going_back(self, saved: Saved) -> AbstractContextManager[object]:
        """Where a backward runs: a checkpoint in it finds what the forward found."""
        going: AbstractContextManager[object] = self._draw.backward(saved.drawn)
        if saved.tape is not None:
            going = self._recorder.recording(saved.tape, going)
        is_cast = torch.is_autocast_enabled(self._device.type)
        if not self.stashes and not is_cast:
            return going
        kinds: list[AbstractContextManager[object]] = [going]
        if is_cast:
            kinds.append(without_autocast(self._device))
        if self.stashes:
            is_kept = self.is_stashing
            kinds.append(
                self._slots.holding(self._leaves(saved)) if is_kept else self._without_forwards()
            )
        return _together(nullcontext(), *kinds)

    @contextmanager
    def _without_forwards(self) -> Iterator[None]:
        """Refuse a backward that runs a forward again."""
        hook = register_module_forward_pre_hook(lambda *_: self._refuse_checkpoint())
        try:
            yield
        finally:
            hook.remove()

    def _refuse_checkpoint(self) -> None:
        raise InputError(
            f"stage {self.index} has a checkpoint, and this program stashes nothing: its backwards"
            f" look up newer weights, which a checkpoint does not do. Use a schedule that stashes"
        )


@contextmanager
def _together(
    drawing: AbstractContextManager[Drawn | None], *others: AbstractContextManager[object]
) -> Iterator[Drawn | None]:
    with ExitStack() as stack:
        drawn = stack.enter_context(drawing)
        for other in others:
            stack.enter_context(other)
        yield drawn


def _passed(saved: Saved) -> Passed:
    """The gradients of the inputs, as they travel."""
    return tuple([None if leaf.grad is None else contiguous(leaf.grad) for leaf in saved.inputs])


def _passed_on(leaf: Tensor) -> Tensor:
    """A leaf as a module sees what another has computed; autocast keeps casts of leaves."""
    return leaf.view_as(leaf) if leaf.requires_grad else leaf


def _are_same(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)


def _backward(outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """As torch.autograd.backward, whose checks in Python take longer than a small stage."""
    Variable._execution_engine.run_backward(
        tuple(outputs), tuple(grads), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
