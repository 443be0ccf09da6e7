"""A stage at work: one copy of one slice of the model, and what its microbatches have left.

Knows autograd; knows neither devices nor schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch import Tensor, nn

from weft.errors import WeftError
from weft.runtime.device.accelerator import used_here
from weft.runtime.device.shards import all_groups, is_gathered, local, reshard
from weft.runtime.precision import NotMixed
from weft.runtime.stage.borders import (
    Borders,
    Gradients,
    Passed,
    edge_of,
    passed,
    refuse_changed,
    refuse_overlap,
)
from weft.runtime.stage.buffers import Buffers
from weft.runtime.stage.calling import called, keeps_inputs, names_of
from weft.runtime.stage.cast import Cast, without_autocast, without_graph
from weft.runtime.stage.contexts import NOTHING, Contexts
from weft.runtime.stage.deferred import Apart, Recorder, Tape
from weft.runtime.stage.graphs import Graphs, Root, run_backward
from weft.runtime.stage.keyed import KeyedModules
from weft.runtime.stage.known import Known
from weft.runtime.stage.locks import OPEN, Locks
from weft.runtime.stage.offload import HeldTensors
from weft.runtime.stage.prints import prints_of, refuse_difference
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.saved import Saved
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.state import State
from weft.runtime.stage.storage.marked import Marked, unmarked
from weft.runtime.stage.storage.policies import StoragePolicy, storing
from weft.runtime.stage.swap import Slots
from weft.runtime.stage.values import Value
from weft.runtime.stage.versioned import StashVersions, Versioned


class Stage:
    """One copy of one stage, whose role in the program does not change.

    `begin` comes before every step; without it, nothing is refused for what it might change.
    Where a stage is split, some backwards come in two halves: these defer their weight gradients,
    unless nothing is stashed; then the first half computes them, and the second adds them.
    """

    def __init__(self, module: nn.Module, draw: Draw, role: Role) -> None:
        self.module, self.role = module, role
        self._device = next((p.device for p in module.parameters()), role.device)
        self._draw, self._weights = draw, [*module.parameters()]
        unmarked(module)  # as another stage may have left it
        drawn = [] if role.is_beside else [(names_of(module, role.index), module)]
        drawing = KeyedModules(drawn, draw, entered_by_hand=module)
        self._recorder = Recorder()  # after that: what records may not seem to draw
        self._is_gathered = is_gathered(module)
        is_deferrable = role.is_split and not self._is_gathered  # gradients are scattered in I
        self._is_deferring = is_deferrable and self._recorder.attach(module)
        self._buffers, self._graphs = Buffers(module), Graphs(role.index)
        self._state, self._versioned = State(module, role.index), Versioned(module, role)
        self._marked = Marked(module, keeps_outputs=self._versioned.is_following)
        self._borders = Borders(module, role, self._device)
        self._contexts = Contexts(
            draw,
            role,
            self._device,
            drawing=drawing,
            slots=Slots(module),
            versioned=self._versioned,
            recorder=self._recorder,
            groups=() if self._is_gathered else all_groups(module.parameters()),
        )
        self._has_versions = bool(self._versioned)
        self._not_mixed = NotMixed(role.index, module, role.precision)
        self._saved: dict[int, Saved] = {}
        self._known = Known()
        self._returned = f"what stage {role.index} returns"
        self.offloaded_bytes = self.onloaded_bytes = 0  # that were moved so far

    @property
    def index(self) -> int:
        return self.role.index

    @property
    def in_flight(self) -> int:
        return len(self._saved)

    def refuse_exchanged(self) -> None:
        """Refuse to train where the module has other parameters than it had."""
        self._state.refuse_exchanged()

    def begin(self, locks: Locks = OPEN, shapes: StageShapes | None = None) -> None:
        """Look at what may have changed since the last step, and take what is known of this one.

        Where no shapes are known, inputs are copied, as the module may change them in place.
        """
        self._contexts.look()
        self._versioned.refuse_unfrozen()
        self._versioned.look()
        is_watched = self._draw.is_watching(self._draw.step)
        self._state.begin(locks, self._versioned.parameters, is_watched=is_watched)
        self._known = Known.of(self.role, shapes, keeps_inputs=keeps_inputs(self.module))
        is_autocast = self._cast().dtype is not None
        is_cast = self.role.precision.compute is not None or is_autocast
        self._recorder.whole = self._known.undeferred(self.module, is_cast=is_cast)
        if is_autocast:  # of what torch casts it saves the cast, which is not rounded
            self._recorder.whole |= self._marked.rounding

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
        """The value that goes to other stages; the weighted loss on the last stage.

        It computes with these versions of its weights, one for each stash, where it has stashes.
        What is offloaded can be moved to the host until its backward; where the forward is
        recomputed, that is its inputs.
        """
        self._state.look()
        saved = self._saved[microbatch] = Saved([self._borders.taken(value) for value in values])
        if self.role.is_after:
            saved.listen()
        if is_divided and self._is_deferring and not self._versioned.is_following:
            saved.tape = Tape()
        if self._has_versions:
            saved.versions = self._versioned.take(versions)
        if is_offloaded:
            saved.held = self._held(microbatch, saved)
        if is_recomputed:
            saved.cast = self._cast()
            saved.buffers = self._buffers.snapshot()  # kernels may be others without a graph
        value = self._run_kept(microbatch, saved).marked()
        if self._known.changed_by is not None and self._is_watched(microbatch):
            refuse_overlap(value, self.index, self._known.changed_by)
        if is_recomputed:
            saved.prints = self._prints(microbatch, value)
        elif is_offloaded and self.role.loss is None:
            saved.outputs = [*map(edge_of, value.leaves)]
        else:
            saved.outputs = value.leaves
        self._state.check()
        return self._handed(value)

    def infer(self, microbatch: int, values: Sequence[Value]) -> Value:
        """The value alone: nothing is kept for a backward, and no buffer changes."""
        self._state.look()
        given = Saved([v.with_leaves(map(self._borders.here, v.leaves)) for v in values])
        with without_graph():
            swap = self._versioned.newest() | self._buffers.copies()
            value = self._run(microbatch, given, swap)
        self._state.check()
        if self.role.loss is None:
            value = self._known.marked(microbatch, value)
        if self._is_gathered:
            reshard(self.module)  # as no backward does
        return self._handed(value)

    def _handed(self, value: Value) -> Value:
        """A value as others get it; hooks of FSDP2 on it are for this stage's backward alone."""
        disturbed_by = None if self._is_gathered else self._known.disturbed_by
        return self._borders.handed(value, disturbed_by)

    def offload(self, microbatch: int) -> None:
        """Move what a forward keeps to the host."""
        held = self._saved[microbatch].held
        if held is None:
            raise WeftError(f"stage {self.index}: microbatch {microbatch} cannot be offloaded")
        self.offloaded_bytes += held.offload()

    def onload(self, microbatch: int) -> None:
        """Move it back."""
        held = self._saved[microbatch].held
        if held is not None:
            self.onloaded_bytes += held.onload()

    def release(self, microbatch: int) -> None:
        """Give back the memory of what has left, once it has."""
        saved = self._saved.get(microbatch)
        if saved is not None and saved.held is not None:
            saved.held.release()

    def recompute(self, microbatch: int) -> None:
        """The forward again, from the stored inputs, with the buffers that it had."""
        saved = self._at_hand(microbatch)
        assert saved.buffers is not None
        value = self._run_kept(microbatch, saved, self._buffers.again(saved.buffers))
        saved.outputs, saved.buffers = value.leaves, None
        if saved.prints:
            refuse_difference(self.index, microbatch, saved.prints, prints_of(value))

    def backward(self, microbatch: int, gradients: Gradients) -> Passed:
        """Gradients of the inputs; those of the weights are added to what is there."""
        saved = self._at_hand(microbatch)
        del self._saved[microbatch]
        outputs, grads = self._borders.roots(saved.outputs, gradients)
        if outputs and self._graphs.is_reentrant:
            Tape().play(self._kept_apart(saved, outputs, grads))
        elif outputs:
            with self._contexts.backward(saved):
                run_backward(outputs, grads)
        if saved.versions:
            self._versioned.give_back(saved.versions)
        return passed(saved)

    def input_grad(self, microbatch: int, gradients: Gradients) -> Passed:
        """Gradients of the inputs; what the weights need is kept for `weight_grad`."""
        saved = self._at_hand(microbatch)
        outputs, grads = self._borders.roots(saved.outputs, gradients)
        if outputs:
            saved.gradients = self._kept_apart(saved, outputs, grads)
        found = passed(saved)
        saved.outputs, saved.values, saved.held = (), (), None
        return found

    def weight_grad(self, microbatch: int) -> None:
        """Add what `input_grad` kept to the gradients of the weights."""
        saved = self._saved.pop(microbatch)
        if self.role.is_beside:  # it left them on another stream
            used_here(saved.for_weights())
        with without_autocast(self._device), self._contexts.weights(saved):
            (saved.tape or Tape()).play(saved.gradients)
        if saved.versions:
            self._versioned.give_back(saved.versions)

    def forget(self) -> None:
        """Drop what is left of a step that did not end."""
        for saved in self._saved.values():
            if saved.held is not None:
                saved.held.give_up()
        self._saved.clear()
        self._versioned.forget()

    def _at_hand(self, microbatch: int) -> Saved:
        """What a forward has kept, none of which is on the host."""
        saved = self._saved[microbatch]
        if saved.held is not None:
            saved.held.refuse_away()
        return saved

    def _held(self, microbatch: int, saved: Saved) -> HeldTensors:
        versions = self._versioned.leaves(saved.versions).values()
        fixed = [*self._weights, *self.module.buffers(), *versions]
        given = [*saved.inputs] if self.role.is_first else []
        given += self.role.judged_by(microbatch) if self.role.loss is not None else ()
        fixed += [leaf for leaf in given if _is_part(leaf)]  # rows of a batch stay with the others
        place = self._place(microbatch)
        return HeldTensors(place, saved.inputs, fixed, self.role.blocks, self._device)

    def _place(self, microbatch: int) -> str:
        return f"stage {self.index}, microbatch {microbatch}"

    def _kept_apart(
        self, saved: Saved, outputs: Sequence[Root], grads: Sequence[Tensor]
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """The gradients of a backward, not added to what is there."""
        learning = [weight for weight in self._weights if weight.requires_grad]
        with self._contexts.backward(saved), Apart(learning) as found, self._versioned.summing():
            run_backward(outputs, grads)
        return found

    # running

    def _run_kept(
        self, microbatch: int, saved: Saved, buffers: dict[str, Tensor] | None = None
    ) -> Value:
        """A forward whose graph is kept for the backward."""
        swap = self._versioned.leaves(saved.versions) if self._has_versions else {}
        swap = {**swap, **buffers} if buffers else swap
        is_discarded = saved.buffers is not None and buffers is None
        with self._storing(microbatch, saved, is_discarded=is_discarded):
            value = self._run(microbatch, saved, swap)
        if not self._graphs.are_known:
            anchors = [*saved.inputs, *self._weights, *swap.values(), self._recorder.anchor]
            self._graphs.check(value.leaves, anchors, is_complete=not self._is_gathered)
        if self._versioned.is_following and self._graphs.is_reentrant:
            self._versioned.refuse_checkpoint()
        return value

    def _storing(
        self, microbatch: int, saved: Saved, *, is_discarded: bool
    ) -> AbstractContextManager[object]:
        """Where a forward runs whose saved tensors are not simply kept.

        What is recomputed discards those of its first run, and offloads none of its second.
        """
        held = saved.held if saved.buffers is None else None
        policies: list[StoragePolicy] = [self._marked] if self._marked and not is_discarded else []
        if not self._versioned.is_following:
            if not policies and held is None:
                return NOTHING
            return storing(policies, held, self._place(microbatch))
        followed, place = self._versioned.followed(), self._place(microbatch)
        with ExitStack() as stack:
            stack.enter_context(followed)
            stack.enter_context(storing([followed, *policies], held, place))
            return stack.pop_all()

    def _run(self, microbatch: int, saved: Saved, swap: dict[str, Tensor]) -> Value:
        """A forward with these weights and buffers in place of the module's own."""
        given, known = saved.values, self._known
        own = known.own
        if saved.held is not None and not known.changes_inputs:
            own = _seen  # what is moved is nobody's but ours
        if own is not None:
            given = [value.with_leaves(map(own, value.leaves)) for value in given]
        before = self._marks(microbatch, swap) if self._has_versions else None
        self._recorder.tape = saved.tape
        try:
            with self._contexts.forward(microbatch, saved.cast, swap) as saved.drawn:
                with self._not_mixed:
                    out: Any = called(self.module, given)
                if (loss := self.role.loss) is not None:
                    if saved.drawn is not None:
                        self._draw.enter_loss()
                    out = loss(self._borders.judged(out), microbatch)
        finally:
            self._recorder.tape = None
        if known.changes_inputs and not self.role.has_inputs_alone:
            refuse_changed(given, self.index)
        if before is not None and before != self._marks(microbatch, swap):
            self._versioned.refuse_change()
        return Value.of(out, self._returned)

    def _cast(self) -> Cast:
        return Cast.here(self._device, self.role.precision)

    def _marks(self, microbatch: int, swap: dict[str, Tensor]) -> list[object]:
        return self._versioned.marks(swap, is_watched=self._is_watched(microbatch))

    def _prints(self, microbatch: int, value: Value) -> Sequence[float]:
        if self._versioned.is_following or not self._is_watched(microbatch):
            return ()  # the weights may have changed since
        return prints_of(value)

    def _is_watched(self, microbatch: int) -> bool:
        """Whether this is one of the first steps, in which forwards are looked at closely."""
        step, _ = self._draw.place(microbatch)
        return self._draw.is_watching(step)


def _seen(leaf: Tensor) -> Tensor:
    """A leaf as a module sees it that must not notice when the leaf is moved."""
    return leaf.view_as(leaf)


def _is_part(leaf: Tensor) -> bool:
    """Whether a leaf is a view of something larger."""
    return local(leaf).untyped_storage().nbytes() > local(leaf).nbytes
