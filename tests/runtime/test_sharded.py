"""Sharded optimizer state: each copy of a stage updates its share, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from tests.runtime.models import WIDTH, adam, batches, plain_descent, squared
from tests.runtime.ranks import run
from tests.runtime.test_replicas import batch_of, by_reference, program_of, stages_of
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.lower import replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.losses import CrossEntropy
from weft.runtime.weights.cuts import ELEMENTWISE, by_rows, by_weights
from weft.schedules import REGISTRY, one_f_one_b

NAMES = ["1f1b", "zbv", "chimera", "pipedream-2bw", "wpipe"]
STEPS = 3
SIZES = (7, 1), (), (37,), (2, 33, 3), (1, 50), (64, 64)

Named: TypeAlias = Iterable[tuple[str, nn.Parameter]]
Weights: TypeAlias = dict[tuple[int, int], list[Tensor]]


class Trained:
    """What a pipeline of replicas in this process has come to."""

    def __init__(
        self, name: str, replicas: int = 2, stages: list[nn.Module] | None = None, **options: Any
    ) -> None:
        program = replicated(program_of(name), replicas)
        stages = stages_of(program.stages) if stages is None else stages
        options = dict[str, Any](optimizer=adam, seed=5) | options
        pipeline = Pipeline(stages, program, loss=CrossEntropy(), **options)
        rows = 2 * program.microbatches
        self.losses = [float(pipeline.step(*batch_of(at, rows)).loss) for at in range(STEPS)]
        if pipeline.is_asynchronous:
            pipeline.drain()
        self.optimizers, self.program = pipeline.optimizers, pipeline.program
        self.weights: Weights = {
            place: [weight.detach().clone() for weight in module.parameters()]
            for place, module in pipeline.modules.items()
        }

    def equals(self, other: Trained) -> bool:
        pairs = [
            pair
            for place in self.weights
            for pair in zip(self.weights[place], other.weights[place], strict=True)
        ]
        return self.losses == other.losses and all(torch.equal(*pair) for pair in pairs)

    @property
    def state(self) -> int:
        """Elements of all optimizer state, but for counters."""
        return sum(elements(optimizer) for optimizer in self.optimizers)


def elements(optimizer: Optimizer) -> int:
    found = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() for value in found if isinstance(value, Tensor) and value.dim())


# the same bits


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", [*NAMES, "naive-async"])
def test_copies_that_share_the_update_train_as_copies_that_do_not(
    name: str, clip: float | None
) -> None:
    """With a norm whole gradients are summed, without one each copy sums its share."""
    alone, shared = (Trained(name, clip=clip, shard_optimizer=one) for one in (False, True))
    assert shared.equals(alone)
    copies = len(shared.program.placement.pipes)
    assert shared.state < 1.05 * alone.state / copies


def train(names: list[str], clip: float | None) -> list[list[str]]:
    """In each rank: what differs from the reference, schedule by schedule."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    return [differences(name, mesh, clip) for name in names]


def differences(name: str, mesh: Any, clip: float | None) -> list[str]:
    program, (losses, wanted) = program_of(name), by_reference(name, clip)
    options: dict[str, Any] = {"optimizer": adam, "clip": clip, "seed": 5, "shard_optimizer": True}
    stages = stages_of(program.stages)
    pipeline = Pipeline(stages, program, mesh=mesh, loss=CrossEntropy(), **options)
    found, replica, rows = [], mesh.get_local_rank("dp"), 2 * program.microbatches
    for step in range(STEPS):
        own = slice(replica * rows, (replica + 1) * rows)
        batch, target = (data[own] for data in batch_of(step, 2 * rows))
        loss = float(pipeline.step(batch, target).loss)
        if loss != losses[step]:
            found.append(f"loss {step}: {loss} instead of {losses[step]}")
    if pipeline.is_asynchronous:
        pipeline.drain()
    for (_, stage), module in pipeline.modules.items():
        pairs = zip(module.parameters(), wanted[stage].parameters(), strict=True)
        found += [f"stage {stage}" for pair in pairs if not torch.equal(*pair)]
    pipeline.close()
    return found


@pytest.mark.parametrize("clip", [None, 0.5])
def test_ranks_that_share_the_update_train_as_the_reference_does(clip: float | None) -> None:
    assert run(4, train, NAMES, clip) == [[[]] * len(NAMES)] * 4


def test_state_is_divided_among_three_copies() -> None:
    alone, shared = (Trained("1f1b", 3, shard_optimizer=one) for one in (False, True))
    assert shared.equals(alone)
    assert shared.state == alone.state / 3
    shares = [elements(optimizer) for optimizer in shared.optimizers]
    assert max(shares) < alone.state / 3 / 2  # of a stage of two, a little uneven


def test_schedulers_step_for_every_share() -> None:
    alone, shared = (
        Trained("1f1b", scheduler=fading, shard_optimizer=one) for one in (False, True)
    )
    assert shared.equals(alone)
    assert {group["lr"] for one in shared.optimizers for group in one.param_groups} == {
        group["lr"] for one in alone.optimizers for group in one.param_groups
    }


@pytest.mark.parametrize("name", ["1f1b", "pipedream-2bw"])
def test_weights_in_full_precision_are_shared_where_stages_compute_in_half(name: str) -> None:
    alone, shared = (
        Trained(
            name,
            stages=[stage.float() for stage in stages_of(2)],
            precision="fp16",
            shard_optimizer=one,
        )
        for one in (False, True)
    )
    assert shared.equals(alone)
    assert shared.state == alone.state / 2


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", ["1f1b", "pipedream-2bw", "wpipe"])
def test_ends_of_a_tied_weight_are_shared_over_copies(name: str, clip: float | None) -> None:
    def tied() -> list[nn.Module]:
        first, *_, last = stages = stages_of(program_of(name).stages)
        last[1].weight = first[0].weight  # type: ignore[index]
        return stages

    alone, shared = (
        Trained(name, stages=tied(), clip=clip, shard_optimizer=one) for one in (False, True)
    )
    assert shared.equals(alone)
    assert shared.state == alone.state / 2


def test_gradients_that_pile_up_are_shared_with_the_update_that_takes_them() -> None:
    found = []
    for is_shared in (False, True):
        program = replicated(program_of("1f1b"), 2)
        pipeline = Pipeline(
            stages_of(2), program, loss=CrossEntropy(), optimizer=adam, shard_optimizer=is_shared
        )
        for step in range(4):
            pipeline.step(*batch_of(step), update=step % 2 == 1)
        modules = pipeline.modules.values()
        found.append([weight.detach().clone() for one in modules for weight in one.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


# optimizers


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE, key=str))
def test_elementwise_optimizers_change_parts_as_they_change_the_whole(
    kind: Callable[..., Optimizer],
) -> None:
    """Whatever the sizes and the cuts, in single precision."""
    torch.manual_seed(0)
    options = {"momentum": 0.9, "weight_decay": 0.1} if kind is optim.SGD else {}
    whole = [nn.Parameter(torch.randn(size)) for size in SIZES]
    apart = [nn.Parameter(weight.detach().clone()) for weight in whole]
    cuts = by_rows(apart, 3)
    pieces = [
        nn.Parameter(cut.part(weight.data, copy))
        for weight, cut in zip(apart, cuts, strict=True)
        for copy in range(3)
        if not cut.is_empty(copy)
    ]
    one, other = kind(whole, lr=0.1, **options), kind(pieces, lr=0.1, **options)
    for _ in range(4):
        for weight in whole:
            weight.grad = torch.randn_like(weight)
        grads = [
            cut.part(weight.grad, copy)
            for weight, cut in zip(whole, cuts, strict=True)
            for copy in range(3)
            if weight.grad is not None and not cut.is_empty(copy)
        ]
        for piece, grad in zip(pieces, grads, strict=True):
            piece.grad = grad
        one.step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, apart, strict=True))


class Normed(Optimizer):
    """Steps of equal length for every weight, as of Muon: what a part would do alone differs."""

    def __init__(self, named: Named) -> None:
        super().__init__([weight for _, weight in named], {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                    mean.lerp_(weight.grad, 0.5)
                    weight -= group["lr"] * mean / (mean.norm() + 1e-6)


@pytest.mark.parametrize("name", ["1f1b", "pipedream-2bw"])
def test_optimizers_that_nobody_knows_get_whole_weights(name: str) -> None:
    alone, shared = (Trained(name, optimizer=Normed, shard_optimizer=one) for one in (False, True))
    assert shared.equals(alone)
    assert shared.state == alone.state / 2
    whole = {tuple(weight.shape) for weights in shared.weights.values() for weight in weights}
    assert {tuple(w.shape) for one in shared.optimizers for w in one.state} <= whole


def test_whole_weights_are_spread_evenly() -> None:
    weights = [torch.empty(size) for size in (100, 60, 50, 10)]
    cuts = by_weights(weights, 2)
    assert [cut.bounds for cut in cuts] == [(0, 100, 100), (0, 0, 60), (0, 0, 50), (0, 10, 10)]


def test_optimizers_of_sparse_gradients_are_refused() -> None:
    def sparse(named: Named) -> Optimizer:
        return optim.SparseAdam([weight for _, weight in named])

    with pytest.raises(InputError, match="SparseAdam takes sparse gradients"):
        Trained("1f1b", optimizer=sparse, shard_optimizer=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_rounded_as_they_are_whole(dtype: torch.dtype) -> None:
    """Of which kernels of a CPU round what they add one by one in another way."""
    program = replicated(one_f_one_b(devices=2, microbatches=2), 3)
    found = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        stages = [nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(2)]
        descent = dict[str, Any](loss=squared, optimizer=plain_descent)
        pipeline = Pipeline(stages, program, shard_optimizer=is_sharded, **descent)
        for batch, target in batches(12, 3, dtype):
            pipeline.step(batch, target)
        found.append([weight for m in pipeline.modules.values() for weight in m.parameters()])
    assert all(map(torch.equal, *found))


def test_state_is_sharded_only_where_there_is_some() -> None:
    with pytest.raises(InputError, match="give optimizer="):
        Trained("1f1b", optimizer=None, shard_optimizer=True)


def test_a_single_copy_keeps_all_of_its_state() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    pipeline = Pipeline(
        stages_of(2), program, loss=CrossEntropy(), optimizer=adam, shard_optimizer=True
    )
    pipeline.step(*batch_of(0))
    assert not (pipeline.program.actions.kind == Kind.GATHER).any()
    named = [weight for module in pipeline.modules.values() for weight in module.parameters()]
    held = [weight for one in pipeline.optimizers for weight in one.state]
    assert {id(weight) for weight in held} == {id(weight) for weight in named}


# saves


def fading(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.5**step)


def made(name: str, replicas: int, **options: Any) -> Pipeline:
    program = replicated(REGISTRY[name](devices=2, microbatches=12 // replicas), replicas)
    options = dict[str, Any](optimizer=adam, scheduler=fading, shard_optimizer=True) | options
    return Pipeline(stages_of(program.stages), program, loss=CrossEntropy(), seed=5, **options)


def losses(pipeline: Pipeline, steps: range) -> list[float]:
    return [float(pipeline.step(*batch_of(step, 24)).loss) for step in steps]


@pytest.mark.parametrize("name", ["1f1b", "chimera", "pipedream-2bw"])
def test_a_run_goes_on_from_shared_state(name: str, tmp_path: Path) -> None:
    first = made(name, 2)
    losses(first, range(2))
    first.save(tmp_path / "save")
    wanted = losses(first, range(2, 4))
    again = made(name, 2)
    again.load(tmp_path / "save")
    assert losses(again, range(2, 4)) == wanted


def resumed(folder: str) -> list[bool]:
    """In each rank: whether losses go on as they did, by schedule."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    found = []
    for name in ("1f1b", "pipedream-2bw"):
        options: dict[str, Any] = {"mesh": mesh, "optimizer": adam, "shard_optimizer": True}
        first, again = (
            Pipeline(stages_of(2), program_of(name), loss=CrossEntropy(), **options)
            for _ in range(2)
        )
        losses(first, range(6))
        first.save(Path(folder) / name)
        wanted = losses(first, range(6, 9))
        again.load(Path(folder) / name)
        found.append(losses(again, range(6, 9)) == wanted)
    return found


def test_ranks_go_on_from_shared_state(tmp_path: Path) -> None:
    assert run(4, resumed, str(tmp_path)) == [[True, True]] * 4


@pytest.mark.parametrize("optimizer", [adam, Normed], ids=["parts", "whole weights"])
def test_shared_state_goes_on_with_any_number_of_copies(optimizer: Any, tmp_path: Path) -> None:
    """Put together and cut anew: bit for bit the state of copies that share nothing."""
    first = made("1f1b", 3, optimizer=optimizer)
    losses(first, range(2))
    first.save(tmp_path / "three")
    whole = made("1f1b", 1, optimizer=optimizer)
    whole.load(tmp_path / "three")
    alone = made("1f1b", 3, optimizer=optimizer, shard_optimizer=False)
    losses(alone, range(2))
    assert state_of(whole) == state_of(alone)[:2]  # of the first copies of both stages
    for place, options in enumerate(({"shard_optimizer": False}, {})):
        other = made("1f1b", 2, optimizer=optimizer, **options)
        other.load(tmp_path / "three")
        other.save(tmp_path / f"two {place}")
        back = made("1f1b", 1, optimizer=optimizer)
        back.load(tmp_path / f"two {place}")
        assert state_of(back) == state_of(whole)
    reference = Reference(stages_of(2), whole.program, loss=CrossEntropy(), optimizer=optimizer)
    reference.load(tmp_path / "three")


def state_of(pipeline: Pipeline) -> list[list[list[float]]]:
    """All that the optimizers keep, stage by stage and weight by weight."""
    return [
        [
            [number for value in state.values() for number in value.flatten().tolist()]
            for state in optimizer.state_dict()["state"].values()
        ]
        for optimizer in pipeline.optimizers
    ]
