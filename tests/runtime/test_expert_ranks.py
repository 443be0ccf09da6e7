"""Expert ranks train, bit for bit, as the reference does that emulates them in one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.runtime.models import adam, squared
from tests.runtime.ranks import run
from weft import lower
from weft.errors import Disagreement, InputError
from weft.ir.program import Program
from weft.models.moe import moe
from weft.runtime import Pipeline, Reference, layers_of, split
from weft.runtime.experts import ALONE, Emulated, ExpertGroup, ExpertRanks, OneRank
from weft.runtime.experts.apart import apart_of
from weft.runtime.losses import CrossEntropy
from weft.runtime.profile import Sample, profiled
from weft.runtime.split.stages import Stages
from weft.schedules import REGISTRY

WORDS, HIDDEN, CONTEXT, ROWS, STEPS, CLIP = 7, 8, 3, 2, 2, 0.1


class Trial(NamedTuple):
    """A schedule on some devices: whole stages, or cut into segments; and what else is asked."""

    name: str
    devices: int = 2
    microbatches: int = 4
    is_cut: bool = False
    clip: float | None = CLIP
    is_updating: bool = True
    options: Mapping[str, Any] = {}

    @property
    def program(self) -> Program:
        """Of one replica."""
        program = REGISTRY[self.name](devices=self.devices, microbatches=self.microbatches)
        if not self.is_cut:
            return program
        return lower.experts(program, layers=layers_of(stages_of(program.stages)))

    @property
    def share(self) -> int:
        """Rows of a batch for each replica."""
        return self.program.microbatches * ROWS


class Outcome(NamedTuple):
    """Losses of all steps, and weights or gradients by stage and name, as bytes."""

    losses: list[float]
    weights: dict[tuple[int, str], bytes]


class Watched(Emulated):
    """Knows how many rows went to each rank."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.sent: list[Sequence[int]] = []

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        self.sent.append(sent)
        return super().exchange(rows, sent, received)


def model_of(layers: int, dense: int, group: ExpertGroup) -> nn.Sequential:
    torch.manual_seed(0)
    return moe(
        WORDS, layers=layers, hidden=HIDDEN, heads=2, context=CONTEXT, experts=4, top=2,
        dense=dense, inner=6, dropout=0.2, group=group,
    )  # fmt: skip


def stages_of(count: int, group: ExpertGroup = ALONE) -> Stages:
    """Words to scores: a dense layer first, then one of experts for each stage."""
    return split(model_of(count + 1, 1, group), stages=count)


def blocks_of(count: int, group: ExpertGroup = ALONE) -> list[nn.Module]:
    """Layers of experts alone, from vectors to vectors."""
    return [*model_of(count, 0, group).children()][1:-1]


def words_of(step: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    batch, target = torch.randint(WORDS, (2, rows, CONTEXT), generator=generator)
    return batch, target


def batch_of(step: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    batch, target = torch.randn(2, rows, CONTEXT, HIDDEN, generator=generator)
    return batch, target


def bytes_of(weight: Tensor, trial: Trial) -> bytes:
    found = weight.detach() if trial.is_updating else weight.grad
    assert found is not None
    return found.numpy().tobytes()


def by_reference(trial: Trial, replicas: int, expert_ranks: int) -> Outcome:
    program = lower.replicated(trial.program, replicas, expert_ranks=expert_ranks)
    group = Watched(expert_ranks)
    stages = stages_of(program.stages, group)
    optimizer = adam if trial.is_updating else None
    reference = Reference(
        stages, program, loss=CrossEntropy(), optimizer=optimizer, clip=trial.clip, seed=5
    )
    batches = [words_of(step, replicas * trial.share) for step in range(STEPS)]
    losses = [float(reference.step(*batch)) for batch in batches]
    assert any(len({*sent}) > 1 for sent in group.sent), "splits are uneven"
    weights = {
        (index, name): bytes_of(weight, trial)
        for index, stage in enumerate(stages)
        for name, weight in stage.named_parameters()
    }
    return Outcome(losses, weights)


class Place(NamedTuple):
    """A rank of a mesh: its replica, its expert group."""

    mesh: DeviceMesh
    replica: int
    group: ExpertRanks

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Place:
        names = tuple(sizes)
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
        replica = mesh.get_local_rank("ep")
        if "dp" in names:
            replica += mesh.get_local_rank("dp") * sizes["ep"]
        return cls(mesh, replica, ExpertRanks(mesh.get_group("ep")))


def differences(
    sizes: Mapping[str, int], trials: Sequence[Trial], wanted: Sequence[Outcome]
) -> list[str]:
    """In each rank: what differs from the reference."""
    place = Place.of(sizes)
    each = zip(trials, wanted, strict=True)
    return [text for trial, outcome in each for text in _differences(place, trial, outcome)]


def _differences(place: Place, trial: Trial, wanted: Outcome) -> list[str]:
    program = trial.program
    with Pipeline(
        stages_of(program.stages, place.group), program, mesh=place.mesh, loss=CrossEntropy(),
        optimizer=adam if trial.is_updating else None, clip=trial.clip, seed=5, deadline=30.0,
        **trial.options,
    ) as pipeline:  # fmt: skip
        share, replicas = trial.share, len(pipeline.program.pipe_of) // program.microbatches
        losses = []
        for step in range(STEPS):
            batch, target = words_of(step, replicas * share)
            rows = slice(place.replica * share, (place.replica + 1) * share)
            losses.append(float(pipeline.step(batch[rows], target[rows]).loss))
        assert pipeline.norm is None or pipeline.norm > CLIP, "gradients are clipped"
        if pipeline.is_asynchronous:
            pipeline.drain()
        found = [] if losses == wanted.losses else [f"{trial}: losses {losses}"]
        for (_, stage), module in pipeline.modules.items():
            for name, weight in module.named_parameters():
                whole, (rank, ranks) = wanted.weights[stage, name], apart_of(weight)
                part = len(whole) // ranks
                if bytes_of(weight, trial) != whole[rank * part : (rank + 1) * part]:
                    found.append(f"{trial}: {name} of stage {stage}")
    return found


SHARDED = {"shard_optimizer": True}
MESHES: dict[str, tuple[Mapping[str, int], Sequence[Trial]]] = {
    "2 expert ranks": (
        {"ep": 2, "pp": 2},
        [
            Trial("kimi-k2", is_cut=True, options={"offload": "all"}),
            Trial("dualpipe", clip=None, options=SHARDED),
            Trial("pipedream-2bw", clip=None),
        ],
    ),
    "side by side": (
        {"pp": 2, "ep": 2},
        [Trial("kimi-k2", is_updating=False), Trial("1f1b", options=SHARDED)],
    ),
    "4 expert ranks": ({"ep": 4, "pp": 2}, [Trial("zbv", microbatches=2)]),
    "4 devices": ({"ep": 2, "pp": 4}, [Trial("1f1b", devices=4, is_cut=True)]),
    "replicas of them": (
        {"dp": 2, "ep": 2, "pp": 2},
        [Trial("1f1b", microbatches=2), Trial("gpipe", microbatches=2, clip=None, options=SHARDED)],
    ),
}


@pytest.mark.parametrize(("sizes", "trials"), MESHES.values(), ids=MESHES)
def test_ranks_train_as_the_reference(sizes: Mapping[str, int], trials: Sequence[Trial]) -> None:
    replicas = sizes.get("dp", 1) * sizes["ep"]
    wanted = [by_reference(trial, replicas, sizes["ep"]) for trial in trials]
    ranks = replicas * sizes["pp"]
    assert run(ranks, differences, sizes, trials, wanted) == [[]] * ranks


# evaluation


def evaluated() -> tuple[float, bytes]:
    """In each of two ranks: the loss of a batch, and what is predicted for it."""
    place, program = Place.of({"ep": 2, "pp": 1}), REGISTRY["gpipe"](devices=1, microbatches=2)
    batch, target = (one.chunk(2)[place.replica] for one in batch_of(0, 4 * ROWS))
    stages = blocks_of(1, place.group)
    with Pipeline(
        stages, lower.experts(program), mesh=place.mesh, loss=squared, deadline=30.0
    ) as pipeline:
        loss = float(pipeline.evaluate(batch, target).loss)
        outputs = pipeline.predict(batch)
    with pytest.raises(InputError, match="cannot be timed one by one"):
        profiled(stages, program, Sample(batch, target, squared))
    return loss, outputs.numpy().tobytes()


def test_evaluation_exchanges_tokens_as_well() -> None:
    found, group = run(2, evaluated), Emulated(2)
    (stage,) = (one.eval() for one in blocks_of(1, group))
    batch, target = batch_of(0, 4 * ROWS)
    losses, outputs = [], [list[Tensor](), list[Tensor]()]
    with torch.no_grad():
        for number in range(2):
            given = [share.chunk(2)[number] for share in batch.chunk(2)]
            made = group.run([lambda one=one: stage(one) for one in given])  # type: ignore[misc]
            for rank, out in enumerate(made):
                outputs[rank].append(out)
                losses.append(squared(out, target.chunk(2)[rank].chunk(2)[number]))
    loss = float(torch.stack([losses[0], losses[2], losses[1], losses[3]]).div(4).sum())
    for rank, (ours, predicted) in enumerate(found):
        assert ours == loss
        assert predicted == torch.cat(outputs[rank]).numpy().tobytes()


# refusals


def started() -> list[str]:
    """In each of four ranks: what pipelines say where the last one has weights of its own."""
    place = Place.of({"dp": 2, "ep": 2, "pp": 1})
    program, found = REGISTRY["gpipe"](devices=1, microbatches=1), []
    for name in ("attention.router.score.weight", "experts.up.weight"):
        (stage,) = blocks_of(1, place.group)
        if place.replica == 3:
            stage.get_parameter(name).data[0] += 1
        with pytest.raises(Disagreement) as caught:
            Pipeline([stage], program, mesh=place.mesh, loss=squared, deadline=30.0)
        found.append(str(caught.value))
    return found


def test_copies_of_the_same_weights_start_alike() -> None:
    assert (
        run(4, started)
        == [
            [
                "ranks 0 and 3 start stage 0 from different weights; seed all ranks alike",
                "ranks 1 and 3 start stage 0, expert rank 1, from different weights; seed all ranks"
                " alike",
            ]
        ]
        * 4
    )


class Second(OneRank):
    """The second of two ranks, of which there is no other."""

    rank, size = 1, 2


def test_weights_are_held_apart_by_the_ranks_of_the_program() -> None:
    program = REGISTRY["gpipe"](devices=2, microbatches=2)
    with pytest.raises(
        InputError, match="which 2 expert ranks hold together, and gpipe has no exp"
    ):
        Pipeline(blocks_of(2, Second()), program, loss=squared)
    wide = lower.replicated(program, 4, expert_ranks=4)
    with pytest.raises(InputError, match="gpipe x 4 has groups of 4: give a mesh with a dimension"):
        Pipeline(blocks_of(2, Second()), wide, loss=squared)


def test_copies_of_a_model_hold_the_same_weights_apart() -> None:
    """Or experts that start alike would be taken for copies of one, and summed."""
    program = REGISTRY["gpipe"](devices=2, microbatches=2)
    with pytest.raises(InputError, match="which 2 expert ranks hold together"):
        Pipeline(copy.deepcopy(blocks_of(2, Second())), program, loss=squared)
