"""Replicas: ranks that read a share of a batch train as the reference does on all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.models import VOCABULARY, WIDTH, adam, linear, squared
from tests.runtime.ranks import run
from weft.errors import InputError
from weft.lower import replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.losses import CrossEntropy
from weft.runtime.suit import is_asynchronous
from weft.runtime.weights.staleness import scoped
from weft.schedules import REGISTRY, one_f_one_b

NAMES = [one.name for one in REGISTRY]
IGNORED, ROWS, STEPS = -100, 16, 3
ORDERS = {"dp, pp": ("dp", "pp"), "pp, dp": ("pp", "dp")}


def stages_of(count: int) -> list[nn.Module]:
    """Words to logits in double precision, with dropout."""
    torch.manual_seed(0)
    line = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)) for _ in range(count)]
    first, last = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    line[0], line[-1] = nn.Sequential(first, line[0]), nn.Sequential(line[-1], last)
    return [stage.double() for stage in line]


def batch_of(step: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Words, with padding among the targets, more of it in some rows than in others."""
    generator = torch.Generator().manual_seed(step)
    batch, target = torch.randint(VOCABULARY, (2, rows, 3), generator=generator)
    target[torch.rand(rows, 3, generator=generator) < torch.linspace(0, 0.9, rows)[:, None]] = (
        IGNORED
    )
    return batch, target


def program_of(name: str) -> Any:
    return REGISTRY[name](devices=2, microbatches=4)


def by_reference(name: str, clip: float | None = 0.5) -> tuple[list[float], list[nn.Module]]:
    program = replicated(program_of(name), 2)
    stages = stages_of(program.stages)
    groups = scoped(program, None) if is_asynchronous(program) and clip else None
    reference = Reference(
        stages, program, loss=CrossEntropy(), optimizer=adam, clip=clip, groups=groups, seed=5
    )
    rows = 2 * program.microbatches
    return [float(reference.step(*batch_of(step, rows))) for step in range(STEPS)], stages


def train(names: list[str], order: str, **options: Any) -> list[list[str]]:
    """In each rank: what differs from the reference, schedule by schedule."""
    sizes = {"dp": 2, "pp": 2}
    dims = ORDERS[order]
    mesh = init_device_mesh("cpu", tuple(sizes[one] for one in dims), mesh_dim_names=dims)
    return [differences(name, mesh, **options) for name in names]


def differences(name: str, mesh: Any, **options: Any) -> list[str]:
    program, (losses, wanted) = program_of(name), by_reference(name)
    pipeline = Pipeline(
        stages_of(program.stages),
        program,
        mesh=mesh,
        loss=CrossEntropy(),
        optimizer=adam,
        clip=0.5,
        seed=5,
        **options,
    )
    found, replica = [], mesh.get_local_rank("dp")
    for step in range(STEPS):
        rows = 2 * program.microbatches  # of each replica
        batch, target = (
            data[replica * rows : (replica + 1) * rows] for data in batch_of(step, 2 * rows)
        )
        inputs = batch if pipeline.reads_inputs else None
        targets = target if pipeline.reads_targets else None
        loss = float(pipeline.step(inputs, targets).loss)
        if loss != losses[step]:
            found.append(f"loss {step}: {loss} instead of {losses[step]}")
    if pipeline.is_asynchronous:
        pipeline.drain()
    for (_, stage), module in pipeline.modules.items():
        theirs = dict(wanted[stage].named_parameters())
        found += [
            f"{key} of stage {stage}"
            for key, weight in module.named_parameters()
            if not torch.equal(weight, theirs[key])
        ]
    pipeline.close()
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_replicas_train_as_the_reference_does_on_the_whole_batch(order: str) -> None:
    """Bit for bit: valid targets are counted over all replicas, and so is the norm."""
    names = ["1f1b", "zbv", "chimera", "pipedream-2bw", "wpipe"]
    assert run(4, train, names, order) == [[[]] * len(names)] * 4


def test_every_schedule_has_replicas_in_one_process() -> None:
    for name in NAMES:
        losses, wanted = by_reference(name)
        program = replicated(program_of(name), 2)
        pipeline = Pipeline(
            stages_of(program.stages),
            program,
            loss=CrossEntropy(),
            optimizer=adam,
            clip=0.5,
            seed=5,
        )
        rows = 2 * program.microbatches
        found = [float(pipeline.step(*batch_of(step, rows)).loss) for step in range(STEPS)]
        assert found == losses, name
        if pipeline.is_asynchronous:
            pipeline.drain()
        for (_, stage), module in pipeline.modules.items():
            pairs = zip(module.parameters(), wanted[stage].parameters(), strict=True)
            assert all(torch.equal(*pair) for pair in pairs), name


def read() -> tuple[float, int, list[float]]:
    """In each rank: an evaluation of its replica's loader, and what its replica predicts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    program = program_of("1f1b")
    pipeline = Pipeline(stages_of(2), program, mesh=mesh, loss=CrossEntropy())
    share = TensorDataset(*(data.chunk(2)[mesh.get_local_rank("dp")] for data in batch_of(0)))
    found = pipeline.evaluate(DataLoader(share, batch_size=3))
    logits = pipeline.predict(share.tensors[0], everywhere=True)
    return found.loss, found.samples, logits.sum((1, 2)).tolist()


def test_replicas_evaluate_and_predict_their_shares() -> None:
    model = nn.Sequential(*stages_of(2)).eval()
    batch, target = batch_of(0)
    with torch.no_grad():
        logits = model(batch)
    loss = float(CrossEntropy()(logits, target))
    sums = logits.sum((1, 2)).chunk(2)
    for rank, (found, samples, predicted) in enumerate(run(4, read)):
        assert found == pytest.approx(loss, rel=1e-12)
        assert samples == ROWS
        assert predicted == pytest.approx(sums[rank // 2].tolist(), rel=1e-12)


def beside() -> list[float]:
    """In each rank: a loss of the pipeline at its own place of a third dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    place = mesh.get_local_rank("tp")
    data = torch.full((4, WIDTH), 1.0 + place)
    pipeline = Pipeline(linear(2), one_f_one_b(devices=2, microbatches=2), mesh=mesh, loss=squared)
    return [float(pipeline.step(data, data).loss) for _ in range(2)]


def test_along_other_dimensions_there_are_pipelines_of_their_own() -> None:
    first, second, third, fourth = run(4, beside)
    assert first == third != second == fourth


def refused(names: tuple[str, ...], devices: int) -> str:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=names)
    try:
        Pipeline(
            linear(devices), one_f_one_b(devices=devices, microbatches=2), mesh=mesh, loss=squared
        )
    except InputError as error:
        return str(error)
    return ""


def test_meshes_that_do_not_fit_are_refused() -> None:
    assert "no dimension 'pp'" in run(2, refused, ("a", "b"), 2)[0]
    assert "has 3 devices, and mesh= has 1 along 'pp'" in run(2, refused, ("dp", "pp"), 3)[0]
    assert "weft.lower.replicated" in refused_alone()


def refused_alone() -> str:
    with pytest.raises(InputError) as found:
        Pipeline(linear(2), one_f_one_b(devices=2, microbatches=2), mesh=object(), loss=squared)  # type: ignore[arg-type]
    return str(found.value)


def lonely() -> str:
    try:
        Pipeline(linear(1), one_f_one_b(devices=1, microbatches=2), loss=squared)
    except InputError as error:
        return str(error)
    return ""


def test_more_ranks_than_devices_without_a_mesh_are_refused_with_a_hint() -> None:
    assert "to train 2 replicas, give a mesh (dp, pp) by mesh=" in run(2, lonely)[0]
