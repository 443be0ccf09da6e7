"""Saves of stages that several ranks hold together: by chunks, into any other layout and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load as torch_load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.runtime.ranks import run
from tests.runtime.test_inner import batch_of, blocks, cut, options_of, program_of, sharded
from weft.errors import SaveError
from weft.ir.program import Program
from weft.runtime import Pipeline, Reference
from weft.runtime.saves import export

SAVED_AFTER, STEPS = 2, 3


def trained(pipeline: Any, steps: range, share: int = 0, shares: int = 1) -> list[float]:
    """The losses of these steps, on a share of each batch."""
    losses = []
    for step in steps:
        given = pipeline.step(*(data.chunk(shares)[share] for data in batch_of(step)))
        losses.append(float(given if isinstance(given, Tensor) else given.loss))
    return losses


def state_of(pipeline: Pipeline) -> dict[str, Tensor]:
    """All weights of this process and the state of their optimizers, whole, by name."""
    names: dict[Tensor, str] = {
        weight: f"{stage}.{name}"
        for (_, stage), module in pipeline.modules.items()
        for name, weight in module.named_parameters()
    }
    found = {name: weight.detach() for weight, name in names.items()}
    for optimizer in pipeline.optimizers:
        for weight, state in optimizer.state.items():
            found |= {f"{names[weight]} {key}": one for key, one in state.items()}
    return {
        name: one.full_tensor() if hasattr(one, "full_tensor") else one
        for name, one in found.items()
    }


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return [name for name in one.keys() | other.keys() if not torch.equal(one[name], other[name])]


def saved_and_resumed(
    folder: Path, mesh: DeviceMesh, stages: Sequence[Sequence[nn.Module]], program: Program
) -> list[str]:
    """What differs, if in a bit, between a run that went on and one that was resumed."""
    is_shared = "fsdp" in (mesh.mesh_dim_names or ())
    share, shares = (mesh.get_local_rank("fsdp"), 2) if is_shared else (0, 1)
    options = {**options_of("1f1b"), "mesh": mesh}
    with Pipeline(stages[0], program, **options) as pipeline:
        trained(pipeline, range(SAVED_AFTER), share, shares)
        pipeline.save(folder, wait=False)
        losses = trained(pipeline, range(SAVED_AFTER, STEPS), share, shares)
        wanted = state_of(pipeline)
    with Pipeline(stages[1], program, **{**options, "seed": 9}) as resumed:
        resumed.load(folder)
        torch.save(state_of(resumed), of_rank(folder))
        again = trained(resumed, range(SAVED_AFTER, STEPS), share, shares)
        wrong = [] if again == losses else [f"{again}, not {losses}"]
        return wrong + differing(state_of(resumed), wanted)


def gathered_by_torch(folder: Path) -> dict[str, Tensor]:
    """What all ranks had of the model after they had loaded a save."""
    found: dict[str, Tensor] = {}
    for file in folder.parent.glob(f"{folder.name} *.pt"):
        found |= torch.load(file, weights_only=True)
    return {name: one for name, one in found.items() if " " not in name}


def other_values(stages: list[nn.Module]) -> list[nn.Module]:
    for stage in stages:
        for weight in stage.parameters():
            nn.init.constant_(weight, 0.5)
    return stages


def by_columns_and_rows(folder: Path) -> list[str]:
    """In each rank of tensor parallel 2 x pipeline 2."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    stages = [cut(blocks(2), mesh), cut(other_values(blocks(2)), mesh)]
    wrong = saved_and_resumed(folder / "1f1b", mesh, stages, program_of("1f1b"))
    stages = [cut(blocks(2), mesh), cut(other_values(blocks(2)), mesh)]
    stale = saved_and_resumed(folder / "stale", mesh, stages, program_of("pipedream-2bw"))
    (folder / "said").mkdir(exist_ok=True)
    with Pipeline(cut(blocks(2), mesh), program_of("1f1b"), **options_of("1f1b"), mesh=mesh) as one:
        one.load(folder / "plain")  # which one process has saved
        there = trained(one, range(SAVED_AFTER, STEPS))
        one.step(*batch_of(0), update=False)
        try:
            one.save(folder / "piled")
        except SaveError as error:
            (folder / "said" / str(dist.get_rank())).write_text(str(error))
    wanted = torch.load(folder / "losses.pt", weights_only=True)
    torch.testing.assert_close(there, wanted, rtol=1e-10, atol=0.0)
    return wrong + stale


def plain(seed: int = 3) -> Pipeline:
    """The same model in one process."""
    return Pipeline(blocks(2), program_of("1f1b"), **{**options_of("1f1b"), "seed": seed})


def test_shards_are_saved_and_found_in_any_layout(tmp_path: Path) -> None:
    """By ranks again bit for bit, from one process, in one process, by torch, and exported."""
    pipeline = plain()
    trained(pipeline, range(SAVED_AFTER))
    pipeline.save(tmp_path / "plain")
    torch.save(trained(pipeline, range(SAVED_AFTER, STEPS)), tmp_path / "losses.pt")
    assert run(4, by_columns_and_rows, tmp_path) == [[]] * 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    here = plain(seed=8)
    here.load(tmp_path / "1f1b")
    whole = nn.Sequential(*blocks(2)).state_dict()
    torch_load({"model": whole}, checkpoint_id=tmp_path / "1f1b", no_dist=True)
    export(tmp_path / "1f1b", tmp_path / "model.pt")
    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    found = nn.Sequential(*here.modules.values()).state_dict()
    assert not differing(whole, found)
    assert not differing(exported, found)
    assert not differing(whole, gathered_by_torch(tmp_path / "1f1b"))
    went_on = plain()
    trained(went_on, range(SAVED_AFTER))
    for name, one in state_of(went_on).items():
        torch.testing.assert_close(state_of(here)[name], one, rtol=1e-10, atol=1e-12)
    reference = Reference(blocks(2), program_of("1f1b"), **options_of("1f1b"))
    reference.load(tmp_path / "1f1b")
    steps = range(SAVED_AFTER, STEPS)
    assert trained(reference, steps) == trained(here, steps)
    said = {file.read_text() for file in (tmp_path / "said").iterdir()}
    assert len(said) == 1
    assert "waits for the next update" in said.pop()


def odd(stages: list[nn.Module]) -> list[nn.Module]:
    """With weights that two ranks cannot have evenly, of one of which one of them has nothing."""
    for stage in stages:
        for size in (3, 1):
            stage.register_parameter(f"odd{size}", nn.Parameter(torch.randn(size).double()))
    return stages


def by_fully_shard(folder: Path) -> list[list[str]]:
    """In each rank: pipeline 2 x FSDP 2, and FSDP 2 x tensor parallel 2; each for another mesh."""
    from torch.distributed.fsdp import fully_shard

    wide = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp"))
    stages = [sharded(odd(blocks(2)), wide) for _ in range(2)]
    found = [saved_and_resumed(folder / "fsdp", wide, stages, program_of("1f1b"))]
    both = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
    stages = [cut(blocks(1), both) for _ in range(2)]
    for (stage,) in stages:
        fully_shard(stage, mesh=both["fsdp"])
    found.append(saved_and_resumed(folder / "both", both, stages, program_of("1f1b", 1)))
    tp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    found.append(taken(folder / "fsdp", tp, cut(odd(blocks(2)), tp)))
    more = init_device_mesh("cpu", (1, 4), mesh_dim_names=("pp", "fsdp"))
    return [*found, taken(folder / "both", more, sharded(blocks(1), more))]


def taken(folder: Path, mesh: DeviceMesh, stages: list[nn.Module]) -> list[str]:
    """What differs, if in a bit, where another mesh loads what this rank had before."""
    program = program_of("1f1b", len(stages))
    with Pipeline(stages, program, mesh=mesh, **options_of("1f1b")) as pipeline:
        pipeline.load(folder)
        wanted = torch.load(of_rank(folder), weights_only=True)
        return differing(state_of(pipeline), wanted)


def of_rank(folder: Path) -> Path:
    """Where this rank writes what it had after it had loaded a save."""
    return folder.with_name(f"{folder.name} {dist.get_rank()}.pt")


def test_what_fsdp_shards_is_saved_and_found_whole(tmp_path: Path) -> None:
    """Each share of the batch draws as it did before."""
    assert run(4, by_fully_shard, tmp_path) == [[[]] * 4] * 4
    for name, stages in {"fsdp": odd(blocks(2)), "both": blocks(1)}.items():
        whole = nn.Sequential(*stages).state_dict()
        torch_load({"model": whole}, checkpoint_id=tmp_path / name, no_dist=True)
        program = program_of("1f1b", len(stages))
        here = Pipeline(stages, program, **options_of("1f1b"))
        here.load(tmp_path / name)
        assert not differing(whole, nn.Sequential(*stages).state_dict())
        assert not differing(whole, gathered_by_torch(tmp_path / name))
