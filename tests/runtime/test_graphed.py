"""Stages that are captured and replayed train as any others, bit for bit, or say why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.captured import CpuCaptures
from tests.runtime.exactness import differences, differences_of
from tests.runtime.models import WIDTH, adam, batches, layers, plain_descent, squared
from tests.runtime.ranks import over_transports
from weft.errors import InputError, NonfiniteError
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, split
from weft.runtime.criterion import Criterion
from weft.runtime.losses import LossShare
from weft.runtime.stage.capturable import way_of_loss
from weft.runtime.stage.graphed import MOST_SIGNATURES, Graphed
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.role import Role
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.values import Value
from weft.runtime.weights.scaling import Scale
from weft.schedules import REGISTRY, Shape, one_f_one_b

made: list[CpuCaptures] = []


class Watched(CpuCaptures):
    """Captures that a test can count."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        made.append(self)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr("weft.runtime.pipeline.CudaGraphs", Watched)


def program_of(name: str, devices: int = 2, microbatches: int = 4) -> Program:
    least, most = REGISTRY[name].stages_per_device
    return REGISTRY[name].program(
        Shape(
            devices=devices,
            microbatches=microbatches,
            stages_per_device=least if most else 2,
        )
    )


# What a stage that is captured sees of a program: how many microbatches are in flight, stages
# beside it on its device, backwards whole or divided or both, and copies of it on another pipe.
# Every other schedule is one of these to it.
SEEN = ["gpipe", "1f1b", "interleaved-1f1b", "zbv", "dualpipe"]


def slices(program: Program) -> list[nn.Module]:
    return split(layers(program.stages), stages=program.stages)


@pytest.mark.parametrize("name", SEEN)
def test_replays_are_exact(name: str) -> None:
    """Dropout, a short last microbatch and clipping; every stage is captured and replayed."""
    program = program_of(name, 2, 8)
    data = batches(3 * 8 - 1, 5)
    assert not differences(slices(program), program, data, clip=0.5, graphs=True)
    assert len(made) == len(program.placement.pipes) * program.stages
    for one in made:
        assert one.captures
        assert one.replays > 2 * one.captures


def test_a_frame_for_each_microbatch_in_flight() -> None:
    """F and B of two in flight on the first device, of one on the last; nothing more later."""
    program = one_f_one_b(devices=2, microbatches=8)
    pipeline = Pipeline(split(layers(2), stages=2), program, loss=squared, graphs=True)
    for batch, target in batches(16, 2):
        pipeline.step(batch, target)
    assert [one.captures for one in made] == [0, 0]
    for batch, target in batches(16, 3):
        pipeline.step(batch, target)
        assert [one.captures for one in made] == [4, 2]
    assert [one.replays for one in made] == [48, 48]


BOTH = pytest.mark.parametrize("name", ["1f1b", "zbv"])


@BOTH
@pytest.mark.parametrize(
    "settings",
    [
        {"precision": torch.bfloat16, "clip": 0.5},
        {"scale": 256.0},
        {"scale": Scale(2.0**10, interval=2)},
        {"weights": [0.1, 0.4, 0.3, 0.2]},
        {"nonfinite": "skip"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_updates_and_losses_depend_on(name: str, settings: dict[str, Any]) -> None:
    program = program_of(name)
    assert not differences(slices(program), program, batches(12, 5), graphs=True, **settings)
    assert all(one.captures for one in made)


def compared(
    change: Callable[[int, Sequence[nn.Module]], object],
    *,
    of: Callable[[int], nn.Sequential] = layers,
    name: str = "1f1b",
    steps: int = 7,
    **settings: Any,
) -> list[str]:
    """What differs between a pipeline with graphs and one without, changed before every step."""
    program, settings = program_of(name), {"loss": squared, "optimizer": adam, **settings}
    pipelines = [
        Pipeline(
            split(of(program.stages), stages=program.stages), program, graphs=graphs, **settings
        )
        for graphs in (True, False)
    ]
    found = []
    for step, (batch, target) in enumerate(batches(12, steps)):
        for pipeline in pipelines:
            change(step, [*pipeline.modules.values()])
        one, other = (pipeline.step(batch, target) for pipeline in pipelines)
        if not torch.equal(one.loss, other.loss):
            found.append(f"the loss of step {step}")
        found += [f"{place} after step {step}" for place in _different(*pipelines)]
    return found


def _different(one: Pipeline, other: Pipeline) -> Iterator[str]:
    for place, module in one.modules.items():
        theirs = other.modules[place]
        wanted = theirs.state_dict()
        for name, value in module.state_dict().items():
            if not _is_identical(value, wanted[name]):
                yield f"{name} of {place}"
        for (name, weight), twin in zip(
            module.named_parameters(), theirs.parameters(), strict=True
        ):
            if not _is_identical(weight.grad, twin.grad):
                yield f"the gradient of {name} of {place}"


def _is_identical(one: Tensor | None, other: Tensor | None) -> bool:
    """Even the signs of zeros."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other) and torch.equal(one.signbit(), other.signbit())


@BOTH
def test_gradients_without_an_optimizer_are_the_users(name: str) -> None:
    """They add up over steps, until the user clears them."""

    def clear(step: int, stages: Sequence[nn.Module]) -> None:
        for stage in stages if step == 5 else ():
            stage.zero_grad()

    assert not compared(clear, optimizer=None, name=name)


def test_what_a_user_keeps_of_gradients_is_not_written_again() -> None:
    program = program_of("1f1b")
    pipeline = Pipeline(slices(program), program, loss=squared, graphs=True)
    kept: list[tuple[Tensor, Tensor]] = []
    for batch, target in batches(12, 6):
        pipeline.step(batch, target)
        for module in pipeline.modules.values():
            found = [weight.grad for weight in module.parameters() if weight.grad is not None]
            kept += [(grad, grad.clone()) for grad in found]
            module.zero_grad()
    assert len(kept) == 6 * sum(len([*m.parameters()]) for m in pipeline.modules.values())
    assert all(torch.equal(grad, then) for grad, then in kept)


def test_gradients_that_pile_up_over_steps() -> None:
    program = program_of("1f1b")
    settings: dict[str, Any] = {"loss": squared, "optimizer": adam}
    one, other = (Pipeline(slices(program), program, graphs=g, **settings) for g in (True, False))
    for step, (batch, target) in enumerate(batches(12, 9)):
        for pipeline in (one, other):
            pipeline.step(batch, target, update=step % 3 == 2)
    assert not [*_different(one, other)]


class Negative(nn.Module):
    """A weight whose gradient is a zero below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, WIDTH))
        self.unused = nn.Parameter(torch.ones(WIDTH))

    def forward(self, value: Tensor) -> Tensor:
        return value + self.weight * (value.detach() * 0).abs().neg()


def test_zeros_keep_their_signs_and_unused_weights_have_no_gradient() -> None:
    def of(count: int) -> nn.Sequential:
        return nn.Sequential(*(Negative() for _ in range(count)))

    def upwards(output: Tensor, target: Tensor) -> Tensor:
        return output.sum()

    assert not compared(lambda *_: None, of=of, optimizer=None, loss=upwards)
    program = program_of("1f1b")
    pipeline = Pipeline([*of(2)], program, loss=upwards, graphs=True)
    for batch, target in batches(12, 4):
        pipeline.step(batch, target)
    (first, _) = pipeline.modules.values()
    assert first.get_parameter("weight").grad.signbit().all()  # type: ignore[union-attr]
    assert first.get_parameter("unused").grad is None


def test_norms_that_count_batches() -> None:
    def of(count: int) -> nn.Sequential:
        torch.manual_seed(0)
        parts = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(count)
        ]
        return nn.Sequential(*parts)

    assert not compared(lambda *_: None, of=of)


def _set_dropout(stages: Sequence[nn.Module], p: float) -> None:
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, nn.Dropout):
                module.p = p


def _freeze(stages: Sequence[nn.Module]) -> None:
    for stage in stages:
        next(stage.parameters()).requires_grad_(False)


def _move(stages: Sequence[nn.Module]) -> None:
    for stage in stages:
        for weight in stage.parameters():
            weight.data = 0.9 * weight.data


CHANGES: dict[str, Callable[[Sequence[nn.Module]], object]] = {
    "dropout": lambda stages: _set_dropout(stages, 0.6),
    "modes": lambda stages: [stage.eval() for stage in stages],
    "frozen": _freeze,
    "memory": _move,
}


@pytest.mark.parametrize(
    ("name", "change"), [("1f1b", change) for change in CHANGES] + [("zbv", "frozen")]
)
def test_what_a_user_changes_between_steps_counts(name: str, change: str) -> None:
    """It is captured anew, after a step without graphs."""

    before: list[int] = []

    def at_four(step: int, stages: Sequence[nn.Module]) -> None:
        if step == 4:
            before[:] = [one.captures for one in made]
            CHANGES[change](stages)

    assert not compared(at_four, name=name)
    assert all(before)
    assert [one.captures for one in made] == [2 * captures for captures in before]


def test_evaluation_between_steps_changes_nothing() -> None:
    program = program_of("1f1b")
    one, other = (
        Pipeline(slices(program), program, loss=squared, optimizer=adam, graphs=graphs)
        for graphs in (True, False)
    )
    for batch, target in batches(12, 6):
        one.step(batch, target)
        found = one.evaluate(batch, target).loss
        other.step(batch, target)
        assert torch.equal(found, other.evaluate(batch, target).loss)
    assert not [*_different(one, other)]
    captures = [each.captures for each in made]
    one.step(batch, target)
    assert [each.captures for each in made] == captures


def test_many_signatures_run_without_graphs() -> None:
    """Lengths that change all the time: a bounded number of them is captured."""
    program = one_f_one_b(devices=1, microbatches=2)
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(2 * (1 + step % 12), WIDTH, generator=generator) for step in range(36)]
    stages = split(layers(1), stages=1)
    assert not differences(stages, program, [(one, -one) for one in data], graphs=True)
    (only,) = made
    assert only.captures == 2 * MOST_SIGNATURES


def test_a_step_can_follow_one_that_failed() -> None:
    program = program_of("1f1b")
    pipeline = Pipeline(slices(program), program, loss=squared, optimizer=adam, graphs=True)
    other = Pipeline(slices(program), program, loss=squared, optimizer=adam)
    for step, (batch, target) in enumerate(batches(12, 7)):
        if step in (2, 4):
            with pytest.raises(NonfiniteError):
                pipeline.step(batch * float("nan"), target)
            with pytest.raises(NonfiniteError):
                other.step(batch * float("nan"), target)
        pipeline.step(batch, target)
        other.step(batch, target)
    assert not [*_different(pipeline, other)]


@pytest.mark.parametrize("model", ["tied", "normed", "forked", "reminded"])
@BOTH
def test_what_stages_hold_and_pass_on(name: str, model: str) -> None:
    """Tied weights, statistics, values that nothing reads, whole numbers beside values."""
    assert not differences_of(model, program_of(name), graphs=True, steps=4)
    assert all(one.captures for one in made)


def test_compiled_stages() -> None:
    torch._dynamo.reset()

    def of(count: int) -> nn.Sequential:
        torch.manual_seed(0)
        parts = [nn.Sequential(Layer(), nn.Dropout(0.5), Layer()) for _ in range(count)]
        compiled: list[Any] = [torch.compile(part, backend="aot_eager") for part in parts]
        return nn.Sequential(*compiled)

    assert not compared(lambda *_: None, of=of, steps=5)
    assert all(one.captures for one in made)


def by_ranks(names: Sequence[str], transport: str) -> list[list[str]]:
    """In each rank: what differs from the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.runtime.pipeline.CudaGraphs", Watched)
        return [
            differences_of("layers", program_of(n), transport=transport, graphs=True, steps=5)
            for n in names
        ]


def test_ranks() -> None:
    assert over_transports(2, by_ranks, ["zbv", "chimera"]) == [[[[]] * 2] * 2] * 2


# a stage by itself


def stage_of(module: nn.Module, draw: Draw, judge: Criterion | None = None) -> Graphed:
    role = Role(index=0, is_split=True, loss=judge, is_loss_drawing=False)
    return Graphed(module, draw, role, Watched(torch.device("cpu")), judge=judge)


def drawn_value(seed: int) -> Value:
    generator = torch.Generator().manual_seed(seed)
    return Value.of(torch.randn(3, WIDTH, generator=generator), "")


def test_gradients_of_inputs_outlive_their_frame() -> None:
    """Another stage may read them when the frame is in use again."""
    draw = Draw()
    stage = stage_of(Layer(), draw)
    for draw.step in range(4):
        stage.begin()
        kept = []
        for number in range(2):
            stage.forward(number, [drawn_value(number)])
            (passed,) = stage.backward(number, [drawn_value(7 + number).leaves[0]])
            assert passed is not None
            kept.append((passed, passed.clone()))
        assert all(torch.equal(passed, then) for passed, then in kept)
    (captures,) = made
    assert captures.captures == 2


def test_losses_outlive_their_frame() -> None:
    draw, criterion = Draw(), Criterion(squared, torch.device("cpu"))
    stage = stage_of(Layer(), draw, criterion)
    for draw.step in range(4):
        stage.begin()
        losses = []
        for number in range(2):
            criterion.begin(number, drawn_value(7 + number), LossShare(0.5, 0.5))
            ((loss,), _) = stage.forward(number, [drawn_value(number)])
            losses.append((loss, loss.clone()))
            stage.backward(number, (None,))
        assert all(torch.equal(loss, then) for loss, then in losses)
        assert losses[0][0] != losses[1][0]


def test_what_runs_without_a_graph_keeps_a_copy_of_what_it_reads() -> None:
    """That may be in the frame of another stage, which is used again before W."""
    draw, layer = Draw(), nn.Linear(WIDTH, WIDTH)
    stage = stage_of(layer, draw)
    draw.step = 5
    value, gradient = drawn_value(0), drawn_value(1).leaves[0]
    graph = one_f_one_b(devices=1, microbatches=1).graph
    shapes = StageShapes([layer], graph, squared, torch.device("cpu"))
    shapes.begin([value], [value])
    stage.begin(shapes=shapes)
    wanted = gradient.t() @ value.leaves[0]
    stage.forward(0, [value], is_divided=True)
    stage.input_grad(0, [gradient])
    value.leaves[0].fill_(float("nan"))
    stage.weight_grad(0)
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, wanted)
    assert stage.in_flight == 0


def test_inputs_that_no_copy_is_laid_out_like_run_without_graphs() -> None:
    program = one_f_one_b(devices=1, microbatches=1)
    wide = torch.randn(4, 2 * WIDTH, generator=torch.Generator().manual_seed(1))
    data = [(wide[:, ::2], wide[:, 1::2])] * 4
    assert not differences(split(layers(1), stages=1), program, data, graphs=True)
    (only,) = made
    assert only.captures == 0


# what is refused


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)


class Counting(Layer):
    calls = 0

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(value)


class Replacing(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return super().forward(value)


class Reading(Layer):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) if value.is_meta or value.sum() > 0 else value


class Checkpointed(Layer):
    is_reentrant = False

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, value, use_reentrant=self.is_reentrant)
        return found

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)


class Reentrant(Checkpointed):
    is_reentrant = True


class Drawing(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()


def _hooked() -> nn.Module:
    made = Layer()
    made.register_forward_hook(lambda *_: None)
    return made


def _with_hooked_weight() -> nn.Module:
    made = Layer()
    made.weight.register_hook(lambda grad: grad)  # type: ignore[no-untyped-call]
    return made


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "counting": (Counting, "stage 1 replaces its attribute calls"),
    "replacing": (Replacing, "stage 1 replaces its buffer seen"),
    "reading": (Reading, "its forward cannot be captured"),
    "checkpoint": (Checkpointed, "stage 1 has a checkpoint"),
    "reentrant": (Reentrant, "stage 1 has a checkpoint"),
    "generator": (Drawing, r"has a generator of its own \(generator\)"),
    "hook": (_hooked, "stage 1 has a hook"),
    "hook of a weight": (_with_hooked_weight, "weight weight has a hook"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_replay_would_not_do_is_refused(case: str) -> None:
    make, why = REFUSED[case]
    program = one_f_one_b(devices=2, microbatches=2)
    pipeline = Pipeline([Layer(), make()], program, loss=squared, graphs=True)

    def train() -> None:
        for batch, target in batches(4, 4):
            pipeline.step(batch, target)

    with pytest.raises(InputError, match=why):
        train()


def test_sparse_gradients_are_refused() -> None:
    stages = [nn.Embedding(5, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH)]
    program = one_f_one_b(devices=2, microbatches=2)
    pipeline = Pipeline(stages, program, loss=squared, graphs=True)
    with pytest.raises(InputError, match="sparse gradient"):
        pipeline.step(torch.zeros(4, dtype=torch.long), torch.zeros(4, WIDTH))


def test_autocast_is_refused() -> None:
    program = one_f_one_b(devices=1, microbatches=1)
    pipeline = Pipeline([nn.Linear(WIDTH, WIDTH)], program, loss=squared, graphs=True)
    ((batch, target),) = batches(2, 1)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="precision="):
        pipeline.step(batch, target)
    stages = [nn.Linear(WIDTH, WIDTH)]
    pipeline = Pipeline(stages, program, loss=squared, graphs=True, precision="autocast")
    with pytest.raises(InputError, match="precision='bf16'"):
        pipeline.step(batch, target)


def test_draws_on_the_host_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(CpuCaptures):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            self.hosts, self.own = [torch.default_generator], torch.Generator()

    monkeypatch.setattr("weft.runtime.pipeline.CudaGraphs", Elsewhere)
    program = one_f_one_b(devices=1, microbatches=1)
    pipeline = Pipeline(split(layers(1), stages=1), program, loss=squared, graphs=True)
    ((batch, target),) = batches(2, 1)
    with pytest.raises(InputError, match="on the host"):
        pipeline.step(batch, target)


def test_graphs_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program = one_f_one_b(devices=1, microbatches=1)
    with pytest.raises(InputError, match="the weights are on cpu"):
        Pipeline([nn.Linear(WIDTH, WIDTH)], program, loss=squared, graphs=True)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (recompute(program_of("1f1b")), "recomputes"),
        (REGISTRY["pipedream"].program(Shape(devices=2, microbatches=4, updates=8)), "versions"),
    ],
    ids=["recompute", "asynchronous"],
)
def test_programs_whose_stages_cannot_be_replayed(program: Program, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Pipeline(slices(program), program, loss=squared, optimizer=plain_descent, graphs=True)


class Weighted(nn.Module):
    """A loss with a number that its user changes."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.factor * squared(output, target)


class Plainly:
    """The same, as an object with a method."""

    def __init__(self) -> None:
        self.factor = 1.0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.factor * squared(output, target)


def as_a_module() -> tuple[Any, Any]:
    made = Weighted()
    return made, made


def as_a_method() -> tuple[Any, Any]:
    made = Plainly()
    return made.loss, made


def as_a_closure() -> tuple[Any, Any]:
    made = Weighted()
    return (lambda output, target: made(output, target)), made


def as_a_partial() -> tuple[Any, Any]:
    made = Weighted()
    return partial(_judged, made), made


def _judged(made: Weighted, output: Tensor, target: Tensor) -> Tensor:
    found: Tensor = made(output, target)
    return found


@pytest.mark.parametrize("make", [as_a_module, as_a_method, as_a_closure, as_a_partial])
def test_what_changes_in_a_loss_between_steps_counts(make: Callable[[], tuple[Any, Any]]) -> None:
    def losses(*, graphs: bool) -> list[float]:
        loss, changed = make()
        program, found = program_of("1f1b"), []
        pipeline = Pipeline(
            slices(program), program, loss=loss, optimizer=plain_descent, graphs=graphs
        )
        for step, (batch, target) in enumerate(batches(8, 6)):
            changed.factor = 2.0 if step == 4 else 1.0
            found.append(pipeline.step(batch, target).loss.item())
        return found

    assert losses(graphs=True) == losses(graphs=False)
    assert any(one.replays for one in made)


def test_a_function_that_has_closed_over_itself_is_looked_at_once() -> None:
    factor = 2.0

    def again(output: Tensor, target: Tensor, depth: int = 0) -> Tensor:
        return again(output, target, 1) if not depth else factor * squared(output, target)

    assert list(way_of_loss(again).values()) == [factor]
