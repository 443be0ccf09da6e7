"""Modules as people write them train as plain torch trains them, or are refused by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.runtime.exactness import differences
from tests.runtime.models import WIDTH, adam, batches, plain_descent, squared
from tests.runtime.plain import Plain, trained_apart
from tests.runtime.ranks import over_transports
from weft.errors import InputError, WeftError
from weft.ir.graph import Graph
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference, split
from weft.schedules import (
    chimera,
    dualpipe,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    pipedream,
    zb_h1,
    zbv,
)

WHOLE = one_f_one_b(devices=2, microbatches=4)
DIVIDED = zb_h1(devices=2, microbatches=4)
AGAIN = recompute(WHOLE)
FOLDED = zbv(devices=1, microbatches=4)  # both stages on one device
COPIED = chimera(devices=2, microbatches=4)
PROGRAMS = {"whole": WHOLE, "divided": DIVIDED, "again": AGAIN, "folded": FOLDED, "copied": COPIED}
each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
one_pipe = pytest.mark.parametrize(
    "program", [WHOLE, DIVIDED, AGAIN, FOLDED], ids=["whole", "divided", "again", "folded"]
)


def line() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def split_from_plain(model: nn.Sequential, program: Program, **settings: Any) -> list[str]:
    """What a pipeline of the split model does otherwise than plain torch or the reference."""
    model = model.double()
    settings = {"loss": squared, "optimizer": adam, **settings}
    data = batches(4 * program.microbatches - 1, 3, torch.float64)
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    stages = split(model, stages=program.stages)
    found = differences(split(third, stages=program.stages), program, data, **settings)
    plain = Plain(twin, microbatches=program.microbatches, **settings)
    pipeline = Pipeline(stages, program, **settings)
    return found + trained_apart(pipeline, plain, data, stages)


# the layers of a model


@each_program
def test_a_layer_that_stands_several_times_in_a_model(program: Program) -> None:
    act = nn.Tanh()
    model = nn.Sequential(line(), act, line(), act, line(), act, line())
    assert [len(stage) for stage in split(model, stages=2)] == [4, 3]  # type: ignore[arg-type]
    assert split_from_plain(model, program) == []


@each_program
def test_a_module_with_weights_in_several_stages(program: Program) -> None:
    shared = nn.Sequential(line(), nn.Tanh())
    model = nn.Sequential(shared, line(), line(), shared)
    assert split_from_plain(model, program, optimizer=plain_descent) == []


@pytest.mark.parametrize("kind", [WHOLE, FOLDED], ids=["straight", "folded"])
def test_one_module_as_every_stage(kind: Program) -> None:
    module = nn.Sequential(line(), nn.Tanh()).double()
    twin = copy.deepcopy(module)
    stages = [module, module]
    pipeline = Pipeline(stages, kind, loss=squared, optimizer=plain_descent)
    model = nn.Sequential(twin, twin)
    plain = Plain(model, microbatches=4, loss=squared, optimizer=plain_descent)
    data = batches(8, 3, torch.float64)
    assert trained_apart(pipeline, plain, data, []) == []
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9)


def test_a_slice_passes_tuples_on_as_the_model_does() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, pair: Any) -> Any:
            one, other = pair if isinstance(pair, tuple) else (pair, pair)
            return self.line(one), other

    class Join(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return pair[0] + pair[1]

    assert split_from_plain(nn.Sequential(Two(), Two(), Two(), Join()), WHOLE) == []


def test_what_a_slice_cannot_show_is_refused() -> None:
    class Twice(nn.Sequential):
        def forward(self, value: Tensor) -> Any:
            return super().forward(super().forward(value))  # type: ignore[no-untyped-call]

    with pytest.raises(InputError, match="Twice has a forward of its own"):
        split(Twice(line(), line()), stages=2)
    hooked = nn.Sequential(line(), line())
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="has hooks"):
        split(hooked, stages=2)


# randomness


class Functional(nn.Module):
    """Draws without any module that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def forward(self, value: Tensor) -> Tensor:
        value = functional.dropout(self.line(value), 0.5, self.training)
        return value + 0.1 * torch.rand_like(value)


class Attention(nn.Module):
    """Drops inside scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def forward(self, value: Tensor) -> Tensor:
        heads = self.line(value).view(len(value), 1, 2, -1)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4)
        return mixed.reshape_as(value)


class Own(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.generator = line(), torch.Generator()

    def forward(self, value: Tensor) -> Tensor:
        out: Tensor = self.line(value)
        return out + torch.rand(out.shape, dtype=out.dtype, generator=self.generator)

    def __deepcopy__(self, memo: Any) -> Own:
        made = Own().to(self.line.weight.dtype)
        made.load_state_dict(self.state_dict())
        return made


DRAWING: list[Callable[[], nn.Module]] = [Functional, Attention, Own]


@each_program
@pytest.mark.parametrize("kind", DRAWING)
def test_what_a_forward_draws_does_not_depend_on_the_program(
    kind: Callable[[], nn.Module], program: Program
) -> None:
    model = nn.Sequential(kind(), line(), kind(), kind())
    assert split_from_plain(model, program) == []


def test_a_shared_dropout_draws_another_mask_in_each_place() -> None:
    drop = nn.Dropout(0.5)
    for cut in ((1, 3), (3, 1), (2, 2)):
        model = nn.Sequential(drop, line(), drop, line()).double()
        torch.manual_seed(0)
        for weight in model.parameters():
            nn.init.ones_(weight)
        stages = split(model, stages=2, layers=cut)
        pipeline = Pipeline(stages, WHOLE, loss=squared)
        loss = pipeline.step(torch.ones(8, WIDTH).double(), torch.zeros(8, WIDTH).double()).loss
        if cut == (1, 3):
            first = loss
        assert torch.equal(loss, first)


@one_pipe
@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_checkpoint_inside_a_stage(program: Program, is_reentrant: bool) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(line(), nn.Dropout(0.5), Functional())

        def forward(self, value: Tensor) -> Tensor:
            first = checkpoint(self.inner, value, use_reentrant=is_reentrant)
            out: Tensor = checkpoint(self.inner, first, use_reentrant=is_reentrant)
            return out

    if not is_reentrant:
        assert split_from_plain(nn.Sequential(line(), Kept(), Kept(), line()), program) == []
        return
    model = nn.Sequential(line(), line(), Kept(), line())  # it needs an input with a gradient
    assert split_from_plain(model, program) == []


def test_what_is_drawn_elsewhere_is_refused() -> None:
    class Python(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            return super().forward(value) * random.random()

    class Numpy(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            return super().forward(value) * float(np.random.rand())

    for kind, whose in ((Python, "random"), (Numpy, "numpy.random")):
        pipeline = Pipeline([kind(WIDTH, WIDTH), line()], WHOLE, loss=squared)
        with pytest.raises(InputError, match=f"stage 0 draws from {whose}"):
            pipeline.step(*batches(8, 1)[0])


def test_state_that_is_no_buffer_is_noticed_by_recomputation() -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, value: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(value) * self.calls

    pipeline = Pipeline([Counting(WIDTH, WIDTH), line()], AGAIN, loss=squared)
    with pytest.raises(WeftError, match=r"stage 0 computes something else .* recomputed"):
        pipeline.step(*batches(8, 1)[0])


# compiled stages


@pytest.mark.parametrize("program", [WHOLE, DIVIDED, AGAIN], ids=["whole", "divided", "again"])
def test_compiled_stages_that_draw(program: Program) -> None:
    torch._dynamo.reset()
    stages: list[Any] = [
        torch.compile(nn.Sequential(line(), nn.Dropout(0.5), line()), backend="aot_eager")
        for _ in range(2)
    ]
    before = torch._dynamo.utils.counters["graph_break"].total()
    assert differences(stages, program, batches(8, 3)) == []
    assert torch._dynamo.utils.counters["graph_break"].total() == before


def test_a_module_compiled_in_place() -> None:
    torch._dynamo.reset()

    def made() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Sequential(line(), nn.Dropout(0.5)) for _ in range(2)]

    losses = []
    for is_compiled in (False, True):
        stages = made()
        for stage in stages if is_compiled else ():
            stage.compile(backend="aot_eager")
        pipeline = Pipeline(stages, WHOLE, loss=squared, optimizer=adam)
        losses.append([pipeline.step(*data).loss for data in batches(8, 2)])
    assert torch.isfinite(torch.stack(losses[1])).all()
    again = Pipeline(made(), AGAIN, loss=squared, optimizer=adam)
    assert [again.step(*data).loss for data in batches(8, 2)] == losses[0]


# values of any structure


class Pair(NamedTuple):
    value: Tensor
    mask: Tensor | None


@dataclass
class Output:
    logits: Tensor
    aux: tuple[Tensor, int]
    name: str = "x"


class Structured(nn.Module):
    """Takes and returns a value of some structure."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.line, self.kind = line(), kind

    def forward(self, *given: Any) -> Any:
        (value,) = given if self.kind != "tuple" else given[:1]
        return self.wrap(self.line(self.open(value)))

    def open(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        reads: dict[str, Callable[[Any], Tensor]] = {
            "dict": lambda v: v["deep"][0]["x"],
            "named": lambda v: v.value,
            "data": lambda v: v.logits,
            "list": lambda v: v[0],
        }
        return reads[self.kind](value)

    def wrap(self, value: Tensor) -> Any:
        ids = torch.arange(len(value))
        wraps: dict[str, Any] = {
            "dict": {"deep": [{"x": value}, None], "ids": ids, "n": 3},
            "named": Pair(value, None),
            "data": Output(value, (ids, 2)),
            "list": [value, ids],
            "tuple": (value, ids, None),
        }
        return wraps[self.kind]


class Opened(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = Structured(kind)

    def forward(self, *given: Any) -> Any:
        value = given[0]
        return self.inner.line(self.inner.open(value))


def structured(kind: str, program: Program, transport: str = "auto") -> list[str]:
    torch.manual_seed(0)
    stages = [*(Structured(kind) for _ in range(program.stages - 1)), Opened(kind)]
    return differences(stages, program, batches(8, 2), transport=transport)


@pytest.mark.parametrize("kind", ["dict", "named", "data", "list", "tuple"])
@pytest.mark.parametrize("program", [WHOLE, DIVIDED, AGAIN], ids=["whole", "divided", "again"])
def test_values_of_any_structure(kind: str, program: Program) -> None:
    assert structured(kind, program) == []


def structures(transport: str) -> dict[str, list[str]]:
    kinds = ("dict", "named", "data", "list", "tuple")
    return {kind: structured(kind, WHOLE, transport) for kind in kinds}


def test_values_of_any_structure_travel() -> None:
    for by_rank in over_transports(2, structures):
        for found in by_rank:
            assert found == {kind: [] for kind in found}


def test_what_is_no_tree_of_tensors_is_refused_by_name() -> None:
    class Odd(nn.Linear):
        def forward(self, value: Tensor) -> Any:
            return {"x": super().forward(value), "cache": object()}

    pipeline = Pipeline([Odd(WIDTH, WIDTH), line()], WHOLE, loss=squared)
    with pytest.raises(InputError, match=r"what stage 0 returns has a object at \['cache'\]"):
        pipeline.step(*batches(8, 1)[0])


def test_batches_of_any_structure() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, given: dict[str, Any]) -> Any:
            return self.line(given["x"]) * given["scale"] + given["more"][0]

    ((x, y),) = batches(8, 1)
    batch = {"x": x, "scale": torch.tensor(2.0), "more": (x, None), "name": "train"}
    loss = lambda output, wanted: squared(output, wanted["y"])  # noqa: E731
    data = [(batch, {"y": y})] * 2
    assert differences([First(), line()], WHOLE, data, loss=loss) == []


def test_lengths_that_differ_are_reported_by_name() -> None:
    pipeline = Pipeline([line(), line()], WHOLE, loss=squared)
    with pytest.raises(InputError, match=r"different lengths: \['x'\] 9, \['mask'\] 14"):
        pipeline.step({"x": torch.zeros(9, WIDTH), "mask": torch.zeros(14)}, torch.zeros(9))


def test_a_batch_that_wants_a_gradient_is_refused() -> None:
    pipeline = Pipeline([line(), line()], WHOLE, loss=squared)
    batch, target = batches(8, 1)[0]
    with pytest.raises(InputError, match="the batch requires a gradient"):
        pipeline.step(batch.requires_grad_(), target)


@each_program
def test_the_loss_gets_all_that_the_last_stage_returns(program: Program) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self.line(value), {"aux": self.line.weight.square().mean()}

    def loss(output: tuple[Tensor, dict[str, Tensor]], target: Tensor) -> Tensor:
        return squared(output[0], target) + 10 * output[1]["aux"]

    model = nn.Sequential(line(), line(), line(), Last())
    assert split_from_plain(model, program, loss=loss) == []


@each_program
def test_a_number_that_nobody_reads_has_no_gradient(program: Program) -> None:
    """A stage's output without dimensions is no loss."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, given: Any) -> tuple[Tensor, Tensor]:
            value: Tensor = self.line(given[0] if isinstance(given, tuple) else given)
            return value, value.sum()

    class First(nn.Module):
        def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
            return given[0]

    model = nn.Sequential(Both(), Both(), Both(), First())
    assert split_from_plain(model, program) == []


@one_pipe
def test_complex_values_have_gradients(program: Program) -> None:
    class There(nn.Linear):
        def forward(self, value: Tensor) -> Any:
            return torch.fft.fft(super().forward(value))

    class Back(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            return super().forward(torch.fft.ifft(value).real)

    model = nn.Sequential(line(), There(WIDTH, WIDTH), Back(WIDTH, WIDTH), line())
    assert split_from_plain(model, program) == []


# in place


@each_program
def test_a_stage_may_change_its_input_in_place(program: Program) -> None:
    class Halved(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            return super().forward(value.mul_(0.5))

    kinds = [Halved(WIDTH, WIDTH), nn.ReLU(inplace=True), line(), Halved(WIDTH, WIDTH)]
    assert split_from_plain(nn.Sequential(*kinds), program) == []
    model = nn.Sequential(line(), line(), nn.ReLU(inplace=True), line())
    assert split_from_plain(model, program) == []


def test_a_value_that_changes_after_it_was_returned() -> None:
    """A buffer is handed on as it was; what else a stage goes on to change is refused."""

    class Running(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.seen: Tensor
            self.register_buffer("seen", torch.zeros(WIDTH))

        def forward(self, value: Tensor) -> Any:
            self.seen += value.detach().mean(0)
            return super().forward(value), self.seen

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, pair: tuple[Tensor, Tensor]) -> Any:
            return self.line(pair[0] + pair[1])

    model = nn.Sequential(Running(), Adding())
    assert split_from_plain(model, gpipe(devices=2, microbatches=4)) == []


# hooks


def seen_by_hooks(program: Program | None) -> list[tuple[str, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(line(), nn.LayerNorm(WIDTH), line(), nn.LayerNorm(WIDTH)).double()
    seen: list[tuple[str, float]] = []

    def before(name: str) -> Callable[[Tensor], Tensor]:
        def hook(grad: Tensor) -> Tensor:
            seen.append((f"before {name}", float(grad.abs().sum())))
            return grad.clamp(-0.01, 0.01)

        return hook

    def after(name: str) -> Callable[[Tensor], None]:
        def hook(weight: Tensor) -> None:
            assert weight.grad is not None
            seen.append((f"after {name}", float(weight.grad.abs().sum())))

        return hook

    for name, weight in model.named_parameters():
        weight.register_hook(before(name))  # type: ignore[no-untyped-call]
        weight.register_post_accumulate_grad_hook(after(name))  # type: ignore[no-untyped-call]
    settings: dict[str, Any] = {"loss": squared, "optimizer": adam}
    runner: Any = (
        Plain(model, microbatches=4, **settings)
        if program is None
        else Pipeline(split(model, stages=program.stages), program, **settings)
    )
    for batch, target in batches(8, 2, torch.float64):
        runner.step(batch, target)
    return sorted((name, round(value, 9)) for name, value in seen)


@pytest.mark.parametrize(
    "program",
    [
        WHOLE,
        DIVIDED,
        AGAIN,
        FOLDED,
        recompute(interleaved_1f1b(devices=1, microbatches=4, stages_per_device=2)),
    ],
)
def test_hooks_of_weights_see_what_they_see_in_plain_torch(program: Program) -> None:
    assert seen_by_hooks(program) == seen_by_hooks(None)


def test_hooks_of_weights_with_versions() -> None:
    model = nn.Sequential(line(), line()).double()
    calls = []

    def zeroed(grad: Tensor) -> Tensor:
        calls.append("before")
        return 0 * grad

    for weight in model.parameters():
        weight.register_hook(zeroed)  # type: ignore[no-untyped-call]
        weight.register_post_accumulate_grad_hook(lambda _: calls.append("after"))  # type: ignore[no-untyped-call]
    first = copy.deepcopy(model.state_dict())
    program = pipedream(devices=2, microbatches=1)
    pipeline = Pipeline(split(model, stages=2), program, loss=squared, optimizer=plain_descent)
    for batch, target in batches(2, 4, torch.float64):
        pipeline.step(batch, target)
    pipeline.drain()
    assert sorted(calls) == ["after"] * 16 + ["before"] * 16
    assert all(torch.equal(first[name], value) for name, value in model.state_dict().items())


def test_a_hook_that_would_see_only_a_part_is_refused() -> None:
    tied = line()
    tied.weight.register_hook(lambda grad: grad)  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match=r"stage 1 shares .*weight .* has a hook"):
        Pipeline([tied, nn.Sequential(tied)], WHOLE, loss=squared)
    after = line()
    after.weight.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match="stage 0, weight weight has a hook"):
        Pipeline([after, line()], COPIED, loss=squared)


# autocast


@pytest.mark.parametrize("program", [WHOLE, DIVIDED, AGAIN], ids=["whole", "divided", "again"])
@pytest.mark.parametrize("is_around", [True, False], ids=["around", "inside"])
def test_autocast(program: Program, is_around: bool) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = nn.Sequential(line(), nn.LayerNorm(WIDTH), line())

        def forward(self, value: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=not is_around):
                inner: Tensor = self.lines(value) if not is_around else value
            return inner if not is_around else self.lines(value)

    torch.manual_seed(0)
    model = nn.Sequential(Cast(), Cast())
    twin, third = copy.deepcopy(model), copy.deepcopy(model)
    settings: dict[str, Any] = {"loss": squared, "optimizer": plain_descent}
    pipeline = Pipeline(split(model, stages=2), program, **settings)
    reference = Reference(split(twin, stages=2), program, **settings)
    plain = Plain(third, microbatches=4, autocast=torch.bfloat16 if is_around else None, **settings)
    for batch, target in batches(8, 3):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_around):
            loss = pipeline.step(batch, target).loss
            assert torch.equal(loss, reference.step(batch, target).float())
        assert torch.allclose(plain.step(batch, target).float(), loss, rtol=1e-5)
    for mine, theirs, others in zip(
        model.parameters(), twin.parameters(), third.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
        assert torch.allclose(mine, others, rtol=1e-4, atol=1e-6)


# order and layout


class Mixed(nn.Module):
    """Reads values of any number, and hands on a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.line = line()

    def forward(self, *values: Tensor) -> Tensor:
        mixed = self.line(torch.stack(values).sum(0))
        return torch.tanh(mixed.t() @ mixed).t()[:, : len(mixed)].t()


def branching(transport: str = "auto") -> list[str]:
    torch.manual_seed(0)
    graph = Graph.inception(4)
    program = gpipe(devices=6, microbatches=2, graph=graph)
    data = batches(2 * WIDTH, 2)
    return differences([Mixed() for _ in range(6)], program, data, transport=transport)


def test_gradients_of_a_value_with_many_readers_are_added_in_one_order() -> None:
    assert branching() == []


def test_they_are_so_in_ranks() -> None:
    for by_rank in over_transports(6, branching):
        assert by_rank == [[]] * 6


def test_edges_in_any_order_mean_the_same() -> None:
    torch.manual_seed(0)
    stages = Graph.inception(2).stages
    graph = Graph(stages, ((2, 3), (0, 2), (1, 3), (0, 1)))

    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = line()

        def forward(self, one: Tensor, other: Tensor) -> Any:
            return self.line(one - 2 * other)

    modules = [line(), line(), line(), Join()]
    program = gpipe(devices=4, microbatches=2, graph=graph)
    assert differences(modules, program, batches(8, 2)) == []


# buffers


@one_pipe
def test_buffers_that_a_forward_changes(program: Program) -> None:
    def normed() -> nn.Module:
        return nn.utils.parametrizations.spectral_norm(line())

    model = nn.Sequential(normed(), nn.BatchNorm1d(WIDTH), normed(), nn.BatchNorm1d(WIDTH))
    assert split_from_plain(model, program) == []


def test_buffers_that_copies_would_disagree_about_are_refused() -> None:
    stages = [nn.Sequential(line(), nn.BatchNorm1d(WIDTH)), nn.Sequential(line())]
    for program in (COPIED, dualpipe(devices=2, microbatches=4)):
        modules = copy.deepcopy(stages)[: program.stages]
        pipeline = Pipeline(modules, program, loss=squared, optimizer=adam)
        before = copy.deepcopy(modules[0][0].state_dict())
        with pytest.raises(InputError, match=r"stage 0 changes its buffer .*; .* several copies"):
            pipeline.step(*batches(8, 1)[0])
        assert all(torch.equal(before[k], v) for k, v in modules[0][0].state_dict().items())
    shared = nn.BatchNorm1d(WIDTH)
    pipeline = Pipeline(
        [nn.Sequential(line(), shared), nn.Sequential(line(), shared)], WHOLE, loss=squared
    )
    with pytest.raises(InputError, match="several stages share"):
        pipeline.step(*batches(8, 1)[0])


# modes, gradients, copies


def test_evaluation_leaves_modes_buffers_and_gradients() -> None:
    frozen = nn.BatchNorm1d(WIDTH).eval()
    stages = [nn.Sequential(line(), frozen), nn.Sequential(line())]
    pipeline = Pipeline(stages, WHOLE, loss=squared)
    pipeline.step(*batches(8, 1)[0])
    first = stages[0].get_parameter("0.weight")
    assert first.grad is not None
    gradient = first.grad.clone()
    pipeline.evaluate(*batches(8, 1)[0])
    assert stages[0].training
    assert not frozen.training
    assert torch.equal(first.grad, gradient)


@each_program
def test_without_an_optimizer_gradients_are_the_users(program: Program) -> None:
    model = nn.Sequential(line(), line(), line(), line()).double()
    twin = copy.deepcopy(model)
    stages = split(model, stages=program.stages)
    pipeline = Pipeline(stages, program, loss=squared)
    plain = Plain(twin, microbatches=4, loss=squared)
    assert trained_apart(pipeline, plain, batches(8, 2, torch.float64), stages) == []
    assert model[0].weight.grad is not None


def test_an_asynchronous_program_needs_an_optimizer() -> None:
    with pytest.raises(InputError, match="give optimizer="):
        Pipeline([line(), line()], pipedream(devices=2, microbatches=1), loss=squared)


def test_copies_are_counted() -> None:
    stages = [line(), line()]
    assert Pipeline(stages, COPIED, loss=squared).copies == {0: 2, 1: 2}
    assert Pipeline(stages, WHOLE, loss=squared).all_copies() == {0: 1, 1: 1}


def counted(transport: str) -> tuple[dict[int, int], dict[int, int]]:
    torch.manual_seed(0)
    pipeline = Pipeline([line(), line()], COPIED, loss=squared, transport=transport)  # type: ignore[arg-type]
    return pipeline.copies, pipeline.all_copies()


def test_copies_are_counted_over_all_ranks() -> None:
    for by_rank in over_transports(2, counted):
        assert by_rank == [({0: 1, 1: 1}, {0: 2, 1: 2})] * 2


# freezing


def unfrozen(transport: str = "auto") -> bool:
    """Whether a part of a stage that learns from the second step on is as in the reference."""
    torch.manual_seed(0)
    stages = [nn.Sequential(line(), line()), nn.Sequential(line(), line())]
    copies = copy.deepcopy(stages)
    pipeline = Pipeline(stages, WHOLE, loss=squared, optimizer=adam, transport=transport)  # type: ignore[arg-type]
    reference = Reference(copies, WHOLE, loss=squared, optimizer=adam)
    for one in (*stages, *copies):
        one[0].requires_grad_(False)
    for step, (batch, target) in enumerate(batches(8, 3)):
        for one in (*stages, *copies) if step == 1 else ():
            one[0].requires_grad_(True)
        pipeline.step(batch, target)
        reference.step(batch, target)
    return all(
        torch.equal(value, copies[index].state_dict()[name])
        for (_, index), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
    )


def test_what_is_frozen_may_learn_later() -> None:
    assert unfrozen()
    for by_rank in over_transports(2, unfrozen):
        assert by_rank == [True, True]


def test_a_stage_without_an_optimizer_may_not_begin_to_learn() -> None:
    for program in (WHOLE, pipedream(devices=2, microbatches=1)):
        stages = [line().requires_grad_(False), line()]
        pipeline = Pipeline(stages, program, loss=squared, optimizer=adam)
        pipeline.step(*batches(8, 1)[0])
        stages[0].requires_grad_(True)
        with pytest.raises(InputError, match=r"stage 0 has no optimizer, .* weight weight learns"):
            pipeline.step(*batches(8, 1)[0])


# what is refused


def test_wrappers_with_communication_of_their_own_are_refused() -> None:
    class Wrapped(DistributedDataParallel):
        def __init__(self, module: nn.Module) -> None:
            nn.Module.__init__(self)
            self.module = module

    stage = nn.Sequential(Wrapped(line()))
    with pytest.raises(InputError, match=r"stage 0, module 0 is wrapped in Distributed"):
        Pipeline([stage, line()], WHOLE, loss=squared)


def test_weights_that_no_stage_has_are_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return squared(output, target) * self.scale

    with pytest.raises(InputError, match="the loss has weights to learn"):
        Pipeline([line(), line()], WHOLE, loss=Scaled())
    first, free = line(), torch.eye(WIDTH, requires_grad=True)

    class Borrowing(nn.Linear):
        def __init__(self, other: Any) -> None:
            super().__init__(WIDTH, WIDTH)
            self.other = [other]

        def forward(self, value: Tensor) -> Any:
            return super().forward(value) @ self.other[0]

    for other in (first.weight, free):
        pipeline = Pipeline([line(), Borrowing(other)], WHOLE, loss=squared, optimizer=adam)
        with pytest.raises(InputError, match=r"stage 1, .* no parameter of that stage"):
            pipeline.step(*batches(8, 1)[0])


def test_a_leaf_that_a_forward_makes_is_no_weight() -> None:
    class Forces(nn.Linear):
        def forward(self, value: Tensor) -> Tensor:
            place = value.detach().requires_grad_()
            (force,) = torch.autograd.grad(super().forward(place).sum(), place, create_graph=True)
            return super().forward(value) + force

    stages: Sequence[nn.Module] = [line(), Forces(WIDTH, WIDTH)]
    for program in (WHOLE, DIVIDED):
        model = nn.Sequential(*copy.deepcopy(list(stages)))
        assert split_from_plain(model, program) == []


# values that share memory


class Viewing(nn.Linear):
    """Returns a value and a view of it."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found = super().forward(value)
        return found, found.view(-1)


class Halving(nn.Linear):
    """Returns the halves of a value, which lie side by side."""

    def forward(self, value: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return super().forward(value).chunk(2, dim=1)


class Raising(nn.Module):
    """Changes one of two values in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        other.add_(1)
        return self.line(one) + other.view_as(one)  # type: ignore[no-any-return]


@pytest.mark.parametrize("offload", ["none", "all"])  # and cut into layers for that
def test_values_that_share_memory_are_refused_where_a_reader_changes_one(offload: Any) -> None:
    stages = [nn.Sequential(line(), Viewing(WIDTH, WIDTH)), Raising(WIDTH)]
    ((batch, target),) = batches(8, 1)
    with (
        Pipeline(stages, WHOLE, loss=squared, optimizer=adam, offload=offload) as pipeline,
        pytest.raises(InputError, match="stage 0 returns tensors that share memory, and stage 1"),
    ):
        pipeline.step(batch, target)


def test_halves_of_a_value_have_no_memory_in_common() -> None:
    stages = [Halving(WIDTH, 2 * WIDTH), Raising(WIDTH)]
    assert not differences(stages, WHOLE, batches(8, 2))
