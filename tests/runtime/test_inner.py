"""Stages that are parallel themselves: tensor parallel 2 x pipeline 2, and shards of FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.runtime.models import WIDTH, adam, squared
from tests.runtime.ranks import run
from weft.errors import WeftError
from weft.ir.program import Program
from weft.lower import offload, recompute, replicated
from weft.runtime.pipeline import Pipeline
from weft.runtime.reference import Reference
from weft.runtime.stage.alike import draw_apart
from weft.schedules import REGISTRY
from weft.simulate import simulate

STEPS, ROWS, MICROBATCHES, CLIP, DROPOUT = 3, 8, 4, 0.05, 0.3
NAMES = ["1f1b", "tied", "zbv", "chimera", "pipedream-2bw", "recompute", "offload"]
HALVES = {"bf16": 2e-2, "fp16": 5e-3}


class Block(nn.Module):
    """Two linear layers and a norm, with dropout where all ranks have the same values."""

    def __init__(self, hidden: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(DROPOUT)
        self.hidden = nn.Dropout(hidden)

    def forward(self, value: Tensor) -> Tensor:
        hidden = self.hidden(torch.relu(self.up(value)))
        found: Tensor = self.norm(value + self.drop(self.down(hidden)))
        return found


def blocks(count: int, dtype: torch.dtype = torch.float64, hidden: float = 0.0) -> list[nn.Module]:
    torch.manual_seed(0)
    return [Block(hidden).to(dtype) for _ in range(count)]


def cut(stages: Sequence[nn.Module], mesh: DeviceMesh) -> list[nn.Module]:
    """By columns, rows and, for the norm, rows of values: gradients of its weights are partial."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module as parallelize

    def by_rows(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], mesh, [Replicate()]).redistribute(
            placements=[Shard(0)]
        )

    def whole(_: nn.Module, output: Any, __: DeviceMesh) -> Tensor:
        found: Tensor = output.redistribute(placements=[Replicate()]).to_local()
        return found

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for stage in stages:
        parallelize(stage, mesh["tp"], plan)
        distribute_module(stage.norm, mesh["tp"], None, by_rows, whole)  # type: ignore[arg-type]
    return [*stages]


def batch_of(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    batch, target = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=dtype)
    return batch, target


def program_of(name: str, devices: int = 2) -> Program:
    plain = REGISTRY["1f1b"](devices=devices, microbatches=MICROBATCHES)
    changed: dict[str, Callable[[], Program]] = {
        "recompute": lambda: recompute(plain),
        "offload": lambda: offload(simulate(plain)),
    }
    if name in changed:
        return changed[name]()
    name = "1f1b" if name in {"tied", *HALVES} else name
    return REGISTRY[name](devices=devices, microbatches=MICROBATCHES)


def options_of(name: str) -> dict[str, Any]:
    precision = {"precision": name} if name in HALVES else {}
    return {"loss": squared, "optimizer": adam, "clip": CLIP, "seed": 3, **precision}


def by_reference(name: str, program: Program) -> tuple[list[float], list[nn.Module]]:
    """The losses and weights of the unsplit model, in one process."""
    dtype = torch.float32 if name in HALVES else torch.float64
    stages = tied_as(name, blocks(program.stages, dtype))
    reference = Reference(stages, program, **options_of(name))
    return [float(reference.step(*batch_of(step, dtype))) for step in range(STEPS)], stages


def tied_as(name: str, stages: list[nn.Module]) -> list[nn.Module]:
    """With a weight that the first two share, if that is what is tried."""
    if name == "tied":
        first, second = (stage.get_submodule("up") for stage in stages)
        second.weight = first.weight
    return stages


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """All of each weight, wherever its shards are."""
    return {
        name: weight.full_tensor() if hasattr(weight, "full_tensor") else weight.detach()
        for name, weight in module.named_parameters()
    }


def wrong_weights(pipeline: Pipeline, wanted: Sequence[nn.Module], rtol: float) -> list[str]:
    wrong = []
    for (_, stage), module in pipeline.modules.items():
        theirs = weights_of(wanted[stage])
        for name, weight in weights_of(module).items():
            if not torch.allclose(weight, theirs[name], rtol=rtol, atol=rtol):
                wrong.append(f"{name} of stage {stage}")
    return wrong


# tensor parallel


def train(names: list[str]) -> dict[str, list[str]]:
    """In each rank: what differs from the unsplit model in one process, by schedule."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    found = {name: differences(name, mesh) for name in names}
    return found | {"plain": from_plain(mesh)}


def differences(name: str, mesh: DeviceMesh) -> list[str]:
    program, rtol = program_of(name), HALVES.get(name, 1e-10)
    losses, wanted = by_reference(name, program)
    dtype = torch.float32 if name in HALVES else torch.float64
    stages = tied_as(name, cut(blocks(program.stages, dtype), mesh))
    with Pipeline(stages, program, mesh=mesh, **options_of(name)) as pipeline:
        found = [float(pipeline.step(*batch_of(step, dtype)).loss) for step in range(STEPS)]
        if pipeline.is_asynchronous:
            pipeline.drain()
        wrong = [] if found == pytest.approx(losses, rel=rtol) else [f"{found}, not {losses}"]
        return wrong + wrong_weights(pipeline, wanted, rtol)


def from_plain(mesh: DeviceMesh) -> list[str]:
    """What differs, if in a bit, from the unsplit model cut in the same way by torch alone."""
    program = program_of("1f1b")
    stages, model = cut(still(blocks(2)), mesh), nn.Sequential(*cut(still(blocks(2)), mesh))
    optimizer = adam([*model.named_parameters()])
    wrong = []
    with Pipeline(stages, program, mesh=mesh, loss=squared, optimizer=adam) as pipeline:
        for step in range(STEPS):
            batch, target = batch_of(step)
            pairs = zip(batch.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)
            losses = [squared(model(one), other) / MICROBATCHES for one, other in pairs]
            for loss in losses:
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if pipeline.step(batch, target).losses.tolist() != [loss.item() for loss in losses]:
                wrong.append(f"losses of step {step}")
        return wrong + wrong_weights(pipeline, [*model], 0.0)


def still(stages: list[nn.Module]) -> list[nn.Module]:
    """Without dropout, which torch alone would not key."""
    for stage in stages:
        stage.drop.p = 0.0  # type: ignore[union-attr]
    return stages


def test_stages_that_are_cut_train_as_the_whole_model_does() -> None:
    names = [*NAMES, *HALVES]
    for found in run(4, train, names):
        assert found == {name: [] for name in [*names, "plain"]}


def with_replicas() -> list[str]:
    """In each rank: what differs where there are two replicas of one device, cut in two."""
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "pp", "tp"))
    program = program_of("1f1b", devices=1)
    losses, wanted = by_reference("1f1b", replicated(program, 2))
    stages = cut(blocks(1), mesh)
    with Pipeline(stages, program, mesh=mesh, **options_of("1f1b")) as pipeline:
        found = []
        for step in range(STEPS):
            share = [data.chunk(2)[mesh.get_local_rank("dp")] for data in batch_of(step)]
            found.append(float(pipeline.step(*share).loss))
        wrong = [] if found == pytest.approx(losses, rel=1e-10) else [f"{found}, not {losses}"]
        return wrong + wrong_weights(pipeline, wanted, 1e-10)


def test_replicas_of_stages_that_are_cut_train_as_the_whole_model_does() -> None:
    assert run(4, with_replicas) == [[]] * 4


def refusal(make: Callable[[], Pipeline]) -> str:
    """What a pipeline says of its first step, if not before."""
    try:
        make().step(*batch_of(0))
    except WeftError as error:
        return str(error)
    return ""


def drawn(*, is_apart: bool) -> tuple[str, list[list[bool]]]:
    """In each rank: what is said of dropout on shards, and what it drops of ones."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))
    (stage,) = stages = cut(blocks(1, hidden=0.5), mesh)
    dropped: list[list[bool]] = []

    def note(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        mask = torch.nn.functional.dropout(torch.ones_like(inputs[0]), 0.5) == 0
        dropped.append(mask.flatten().tolist())
        return output

    hidden = stage.get_submodule("hidden")
    hidden.register_forward_hook(note)
    if is_apart:
        draw_apart(hidden, mesh["tp"])
    program = program_of("1f1b", devices=1)
    return refusal(lambda: Pipeline(stages, program, mesh=mesh, loss=squared)), dropped


def test_shards_are_drawn_for_apart_or_not_at_all() -> None:
    (said, _), (also, _) = run(2, drawn_alike)
    assert said == also
    assert "draws (dropout) on values that differ among the ranks" in said
    assert "weft.runtime.draw_apart(module, mesh['tp'])" in said
    (said, first), (_, second) = run(2, drawn_apart)
    assert said == ""
    assert len(first) == len(second) == MICROBATCHES
    assert all(one != other for one, other in zip(first, second, strict=True))


def drawn_alike() -> tuple[str, list[list[bool]]]:
    return drawn(is_apart=False)


def drawn_apart() -> tuple[str, list[list[bool]]]:
    return drawn(is_apart=True)


def refused() -> list[str]:
    """In each rank: why some stages are not run."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))

    def said(stage: nn.Module, name: str = "1f1b", **options: Any) -> str:
        program, given = program_of(name, 1), {"loss": squared, "optimizer": adam, **options}
        return refusal(lambda: Pipeline([stage], program, mesh=mesh, **given))

    (whole,) = cut(blocks(1), mesh)
    (gathered,) = blocks(1)
    fully_shard(gathered, mesh=mesh["tp"])
    return [
        said(whole, "naive-async"),
        said(whole, graphs=True),
        said(whole, initial=whole.state_dict()),
        said(gathered),
        said(gathered, "pipedream"),
        said(gathered, precision="bf16"),
    ]


def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    first, second = run(2, refused)
    assert first == second
    for said, reason in zip(
        first,
        [
            "stashes no weights, and looks up newer ones by their memory",
            "graphs=True would capture their collectives",
            "load them into the model before it is distributed",
            "call that dimension 'fsdp' or 'dp_shard'",
            "FSDP2 gathers the newest weights alone",
            "give fully_shard a MixedPrecisionPolicy",
        ],
        strict=True,
    ):
        assert reason in said


class Crossing(nn.Module):
    """Returns what its layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.down(value)
        return found


def crossing() -> str:
    """In each rank: what is said of a DTensor between stages."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "tp"))
    columns = ColwiseParallel(use_local_output=False)
    stages = [parallelize_module(Crossing(), mesh["tp"], {"down": columns}) for _ in range(2)]
    program = program_of("1f1b")
    return refusal(lambda: Pipeline(stages, program, mesh=mesh, loss=squared))


def test_values_between_stages_are_plain_tensors() -> None:
    for said in run(2, crossing):
        assert "stage 0 returns a DTensor" in said
        assert "use_local_output=True" in said


# FSDP2


def twice_cut() -> list[str]:
    """In each rank: what differs where FSDP2 shards what is cut already."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
    stages = cut(still(blocks(1)), mesh)
    fully_shard(stages[0], mesh=mesh["fsdp"])
    return trained_by_shares("1f1b", mesh, stages)


def test_stages_of_fsdp_may_be_cut_as_well() -> None:
    assert run(4, twice_cut) == [[]] * 4


def gathered(names: list[str]) -> list[list[str]]:
    """In each rank: what differs from the unsplit model on the whole batch, by schedule."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp"))
    made = {name: sharded(still(blocks(program_of(name).stages)), mesh) for name in names}
    return [trained_by_shares(name, mesh, stages) for name, stages in made.items()]


def trained_by_shares(name: str, mesh: DeviceMesh, stages: list[nn.Module]) -> list[str]:
    program = program_of(name, mesh["pp"].size())
    share, wanted = mesh.get_local_rank("fsdp"), still(blocks(program.stages))
    reference = Reference(wanted, program, **options_of(name))
    losses = [float(reference.step(*batch_of(step))) for step in range(STEPS)]
    options = {**options_of(name), "nonfinite": "skip"}
    with Pipeline(stages, program, mesh=mesh, **options) as pipeline:
        found = []
        for step in range(STEPS):
            loss = pipeline.step(*(data.chunk(2)[share] for data in batch_of(step))).loss
            torch.distributed.all_reduce(loss, group=mesh.get_group("fsdp"))
            found.append(float(loss) / 2)
        wrong = [] if found == pytest.approx(losses, rel=1e-10) else [f"{found}, not {losses}"]
        batch, target = (data.chunk(2)[share] for data in batch_of(0))
        pipeline.evaluate(batch, target)
        if not pipeline.step(batch, target / share).is_skipped:  # infinite for the first share
            wrong.append("an update that another share spoils is made")
        return wrong + wrong_weights(pipeline, wanted, 1e-10)


def sharded(stages: list[nn.Module], mesh: DeviceMesh) -> list[nn.Module]:
    from torch.distributed.fsdp import fully_shard

    for stage in stages:
        fully_shard(stage.get_submodule("up"), mesh=mesh["fsdp"])
        fully_shard(stage, mesh=mesh["fsdp"])
    return stages


def test_stages_of_fsdp_train_as_the_whole_model_does_on_all_shares() -> None:
    names = ["1f1b", "interleaved-1f1b", "zbv"]
    assert run(4, gathered, names) == [[[]] * len(names)] * 4


def shares_drawn() -> list[float]:
    """In each rank: the losses of equal shares, with dropout."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "fsdp"))
    program = program_of("1f1b", devices=1)
    with Pipeline(sharded(blocks(1), mesh), program, mesh=mesh, loss=squared) as pipeline:
        return [float(loss) for loss in pipeline.step(*batch_of(0)).losses]


def test_each_share_is_drawn_for_apart() -> None:
    first, second = run(2, shares_drawn)
    assert all(one != other for one, other in zip(first, second, strict=True))
