"""Witnesses: for every fault that the runtime once had, the smallest case that shows it."""

from __future__ import annotations

from typing import Any

from tests.runtime.habits.case import Case, Model, Plan, Training
from tests.runtime.habits.grammar import Layer

LINE = Layer("Linear")
ONE_STEP = Training(steps=("update",))
GRADIENTS = Training("none", steps=("update",))
ASYNC = Plan("pipedream", devices=1, microbatches=1)


def _chain(*layers: Layer | str, is_split: bool = False, **others: Any) -> Model:
    """A stage for each layer."""
    made = tuple(Layer(one) if isinstance(one, str) else one for one in layers)
    return Model(made, (1,) * len(made), is_split=is_split, **others)


def _gpipe(stages: int, *passes: str, microbatches: int = 2) -> Plan:
    return Plan("gpipe", devices=stages, microbatches=microbatches, passes=passes)


def _recomputed(habit: str) -> Case:
    return Case(_chain("Linear", habit), _gpipe(2, "recompute"), ONE_STEP)


def _split(*layers: Layer | str) -> Case:
    """With a split backward."""
    return Case(_chain(*layers), _gpipe(len(layers), "split"), ONE_STEP)


def _passing(form: str, *, is_split: bool = False) -> Case:
    """A value between two stages."""
    model = _chain(Layer("Linear", form), "Linear", is_split=is_split)
    return Case(model, _gpipe(2), ONE_STEP)


def _ending(form: str) -> Case:
    """A value for the loss."""
    return Case(_chain("Linear", Layer("Linear", form)), _gpipe(2), ONE_STEP)


_SHARED_RELU = Model(
    (LINE, Layer("ReLU"), LINE, Layer("ReLU", same_as=1), LINE, Layer("ReLU", same_as=1), LINE),
    (4, 3),
)

WITNESSES: dict[str, Case] = {
    # sharing
    "split drops layers that stand twice": Case(_SHARED_RELU, _gpipe(2), ONE_STEP),
    "one module in two stages": Case(
        _chain("Linear", "Tanh", Layer("Linear", same_as=0)), _gpipe(3), Training()
    ),
    "one module in two stages of a V": Case(
        _chain("Linear", "Tanh", "Tanh", Layer("Linear", same_as=0)),
        Plan("zbv", devices=2, microbatches=4, stages_per_device=2),
    ),
    "one module that draws in two stages": Case(
        _chain("Linear", "FunctionalDropout", Layer("FunctionalDropout", same_as=1), is_split=True),
        _gpipe(3),
        ONE_STEP,
    ),
    "one module twice in an asynchronous stage": Case(
        Model((LINE, Layer("Linear", same_as=0)), (2,), is_split=False),
        Plan("pipedream-2bw", devices=1, microbatches=1),
    ),
    "one module with a masked weight in two stages": Case(
        _chain("Pruned", Layer("Pruned", same_as=0)), _gpipe(2), ONE_STEP
    ),
    "one module that counts in two stages": Case(
        _chain("Tallied", Layer("Tallied", same_as=0)), _gpipe(2), ONE_STEP
    ),
    "a module that counts, in two copies": Case(
        _chain("Linear", "Tallied"), Plan("dualpipe", devices=2, microbatches=4), ONE_STEP
    ),
    "one module several times in a stage and in another": Case(
        Model((LINE, Layer("Linear", same_as=0), Layer("Linear", same_as=0)), (1, 2), False),
        _gpipe(2),
        Training("none", steps=("update",)),
    ),
    "a tied weight that one end bounds": Case(
        _chain("Clamped", Layer("Linear", tied_to=0)), _gpipe(2), ONE_STEP
    ),
    # randomness
    "functional dropout, recomputed": _recomputed("FunctionalDropout"),
    "dropout inside attention, recomputed": _recomputed("ScaledAttention"),
    "noise, recomputed": _recomputed("Noise"),
    "a generator of its own, recomputed": _recomputed("OwnGenerator"),
    "functional dropout by another schedule": Case(
        _chain("FunctionalDropout", "FunctionalDropout"), Plan("1f1b", 2, 4), ONE_STEP
    ),
    "a loss that draws, recomputed": Case(
        _chain("Linear", "Linear", loss="noisy"), _gpipe(2, "recompute"), ONE_STEP
    ),
    # values
    "the loss gets a part of the outputs": _ending("extra"),
    "a dict": _passing("dict"),
    "a dict for the loss": _ending("dict"),
    "a dataclass": _passing("record"),
    "a named tuple": _passing("named"),
    "a list": _passing("list"),
    "nested values": _passing("nested"),
    "none among the values": _passing("with none"),
    "none in front of the values": _passing("none first"),
    "constants among the values": _passing("constants"),
    "split passes tuples on": _passing("extra", is_split=True),
    "a batch that is a dict": Case(
        _chain("Linear", "Linear", data="dict of rows"), _gpipe(2), ONE_STEP
    ),
    "a batch with none": Case(_chain("Linear", "Linear", data="with none"), _gpipe(2), ONE_STEP),
    "a number that nobody reads": _passing("unread number"),
    "a complex value": _passing("complex"),
    # hooks
    "a weight's hook and a split backward": _split("WeightHook", "Linear"),
    "a hook after accumulation and a split backward": _split("AccumulateHook", "Linear"),
    # the order of sums, layout
    "a value with several readers": Case(
        Model((LINE,) * 5, (1,) * 5, is_split=False),
        Plan("1f1b", devices=3, microbatches=2, graph="three readers"),
        GRADIENTS,
    ),
    "a transposed output": Case(_chain("BatchNorm", "Linear"), _gpipe(2), GRADIENTS),
    # memory
    "recomputation reads a later buffer": _recomputed("Spectral"),
    "recomputation counts again": _recomputed("Tallied"),
    "recomputation of some microbatches": Case(
        _chain("Linear", "Linear"), _gpipe(2, "recompute some"), ONE_STEP
    ),
    "a table made on tensors without memory": Case(_chain("Cached", "Linear"), _gpipe(2)),
    "a number that counts forwards": Case(_chain("Tallied", "Linear"), _gpipe(2), ONE_STEP),
    "evaluate and a part in evaluation mode": Case(
        Model((Layer("BatchNorm", is_evaluating=True), LINE, LINE), (2, 1), is_split=False),
        _gpipe(2),
        Training(steps=("update", "evaluate", "update")),
    ),
    "no optimizer": Case(
        _chain("Linear", "Linear"), _gpipe(2), Training("none", steps=("update", "update"))
    ),
    "no optimizer, and a step without update": Case(
        _chain("Linear", "Linear"), _gpipe(2), Training("none", steps=("update", "pile"))
    ),
    "no optimizer, but a bound of the norm": Case(
        _chain("Linear", "Linear"), _gpipe(2), Training("none", clip=0.5, steps=("update",))
    ),
    # autograd
    "a checkpoint and a split backward": _split("Checkpointed", "Linear"),
    "a reentrant checkpoint and a split backward": _split("Linear", "CheckpointedReentrant"),
    "autocast inside and a split backward": Case(
        _chain("Linear", "Cast", dtype="float32"), _gpipe(2, "split"), ONE_STEP
    ),
    "autocast around and a split backward": Case(
        _chain("Linear", "Linear", dtype="float32"),
        _gpipe(2, "split"),
        Training(steps=("update",), is_cast=True),
    ),
    "in place on the input": Case(_chain("Linear", "ReLUInPlace"), _gpipe(2), ONE_STEP),
    "in place on the input, recomputed": _recomputed("Added"),
    "in place on the data, recomputed": Case(
        _chain("Added", "Linear"), _gpipe(2, "recompute"), ONE_STEP
    ),
    "a layer called with a keyword and a split backward": _split("Keyword", "Linear"),
    "vmap and a split backward": _split("Mapped", "Linear"),
    "in place on a value that another stage reads": Case(
        Model((LINE, Layer("Zeroed"), LINE, LINE), (1,) * 4, is_split=False),
        Plan("1f1b", devices=1, microbatches=1, graph="skip"),
        ONE_STEP,
    ),
    "attention in evaluation mode, recomputed": Case(
        _chain(Layer("Attention", is_evaluating=True), "Linear"),
        _gpipe(2, "recompute"),
        GRADIENTS,
    ),
    "a backward hook after what does not learn": Case(
        _chain(Layer("Linear", is_frozen=True), Layer("BackwardPreHook", is_frozen=True), "Linear"),
        _gpipe(3),
        ONE_STEP,
    ),
    "in place after a layer and a split backward": Case(
        Model((LINE, Layer("ReLUInPlace"), LINE), (2, 1), is_split=False),
        _gpipe(2, "split"),
        ONE_STEP,
    ),
    "a weight made by a hook and a split backward": _split("SpectralHook", "Linear"),
    "a weight masked by a hook and a split backward": _split("PrunedWithoutBias", "Linear"),
    # asynchronous
    "a weight's hook, asynchronous": Case(_chain("WeightHook"), ASYNC, ONE_STEP),
    "a hook after accumulation, asynchronous": Case(_chain("AccumulateHook"), ASYNC, ONE_STEP),
    "a weight that is bounded, asynchronous": Case(_chain("Clamped"), ASYNC, ONE_STEP),
    "a reentrant checkpoint, asynchronous": Case(
        Model((LINE, Layer("CheckpointedReentrant")), (2,)), ASYNC, ONE_STEP
    ),
    "a norm of stages that do not learn, asynchronous": Case(
        Model((LINE, Layer("Linear", is_frozen=True), Layer("Linear", same_as=1)), (2, 1)),
        Plan("pipedream", devices=2, microbatches=1),
        Training(clip=0.5, steps=("update",) * 3),
    ),
    "a tied weight without gradient, asynchronous": Case(
        _chain("LayerDrop", Layer("Overwritten", tied_to=0), is_split=True),
        Plan("pipedream", devices=2, microbatches=1),
        ONE_STEP,
    ),
    "a stage without weights, recomputed and asynchronous": Case(
        _chain("Identity", "Linear"),
        Plan("naive-async", devices=2, microbatches=1, passes=("recompute",)),
        ONE_STEP,
    ),
    # losses
    "a loss of one element": Case(
        _chain("Linear", "Linear", loss="one element"), _gpipe(2), ONE_STEP
    ),
}
