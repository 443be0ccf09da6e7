"""A run that is saved goes on: exactly by the same program, and by names under any other."""

from __future__ import annotations

import json
import pickle
import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from tests.runtime.models import Data, batches, layers, likelihood, normed, squared, tied, words
from tests.runtime.saving import (
    LAYERS,
    decaying,
    grouped,
    is_equal,
    optimizer_state_of,
    pipeline_of,
    program_of,
    state_of,
    trained,
    warmed,
)
from weft.errors import InputError, SaveError
from weft.ir.program import Program
from weft.lower import replicated
from weft.runtime import Pipeline, Reference, Scale, Staleness, split
from weft.runtime.saves import clean, folder_of, newest, prune
from weft.schedules import REGISTRY, gpipe, one_f_one_b, pipedream, pipedream_2bw, zb_h1

SYNCHRONOUS = one_f_one_b(devices=2, microbatches=2)


def data_for(program: Program, steps: int) -> Data:
    """With a short last microbatch."""
    return batches(max(program.microbatches * 3 - 1, 3), steps)


def saved(folder: Path, program: Program = SYNCHRONOUS, **settings: Any) -> Pipeline:
    """A pipeline that was saved after two steps."""
    pipeline = pipeline_of(program, **settings)
    trained(pipeline, data_for(program, 2))
    pipeline.save(folder)
    return pipeline


# exactness


@pytest.mark.parametrize("name", [schedule.name for schedule in REGISTRY])
def test_a_resumed_run_has_the_losses_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """Bit for bit, with dropout, clipping, Adam and a scheduler; both runs save.

    Variants matter where they have other versions of weights.
    """
    is_stale = program_of(name, 2, "").period is not None
    for variant in ("", *(REGISTRY[name].variants if is_stale else ())):
        program, run = program_of(name, 2, variant), tmp_path / f"run {variant}"
        data = data_for(program, 5)
        pipeline, resumed = pipeline_of(program), pipeline_of(program, seed=9)
        losses = trained(pipeline, data, (2, 4), run)
        assert resumed.load(folder_of(run, 2)) == {"batch": 2}
        again = trained(resumed, data[2:], (4,), run / "again")
        assert torch.equal(torch.stack(losses[2:]), torch.stack(again))
        assert is_equal(state_of(pipeline), state_of(resumed))


def frozen(stages: int) -> list[nn.Module]:
    model = layers(LAYERS)
    for index in (0, 5):
        model[index].requires_grad_(False)
    return split(model, stages=stages)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bfloat16": ("1f1b", {"precision": "bf16"}),
    "bfloat16, stale": ("pipedream-2bw", {"precision": "bf16"}),
    "float16 that overflows": ("1f1b", {"precision": "fp16", "scale": Scale(2.0**26, 2)}),
    "float16 that overflows, stale": (
        "pipedream-2bw",
        {"precision": "fp16", "scale": Scale(2.0**30, 2)},
    ),
    "frozen": ("pipedream", {"stages": frozen, "clip": None}),
    "running statistics": ("pipedream-2bw", {"stages": normed}),
    "tied": ("chimera", {"stages": tied, "loss": likelihood}),
    "tied, stale": ("pipedream-2bw", {"stages": tied, "loss": likelihood}),
    "predicted": ("pipedream", {"staleness": Staleness(predict=True, temper=6), "clip": None}),
    "warming up": ("pipedream-2bw", {"staleness": Staleness(warmup=4)}),
}


@pytest.mark.parametrize("case", CASES)
def test_all_that_a_run_depends_on_is_saved(case: str, tmp_path: Path) -> None:
    """Into a pipeline that has trained something else before."""
    name, settings = CASES[case]
    program = program_of(name, 2)
    data = data_for(program, 7)
    if settings.get("loss") is likelihood:
        data = words(program.microbatches * 3 - 1, 7)
    make = settings.pop("stages", None)

    def made() -> Pipeline:
        stages = {} if make is None else {"stages": make(program.stages)}
        return pipeline_of(program, **settings, **stages)

    pipeline, resumed = made(), made()
    losses = trained(pipeline, data, (3,), tmp_path)
    trained(resumed, data[::-1][:3])
    resumed.load(folder_of(tmp_path, 3))
    assert torch.equal(torch.stack(losses[3:]), torch.stack(trained(resumed, data[3:])))


@pytest.mark.parametrize("name", ["pipedream", "wpipe", "interleaved-1f1b"])
def test_the_reference_goes_on_as_the_pipeline_does(name: str, tmp_path: Path) -> None:
    """Though it has none of the pipeline's code; also long after the beginning of a program."""
    program = program_of(name, 2)
    data = data_for(program, 13)
    trained(pipeline_of(program, clip=None), data[:11], (11,), tmp_path)
    resumed = pipeline_of(program, clip=None, seed=5)
    resumed.load(folder_of(tmp_path, 11))
    stages = split(layers(LAYERS, seed=6), stages=program.stages)
    reference = Reference(stages, program, loss=squared, optimizer=resumed_adam, scheduler=decaying)
    assert reference.load(folder_of(tmp_path, 11)) == {"batch": 11}
    assert reference.updates == resumed.steps == 11
    for batch, target in data[11:]:
        assert torch.equal(resumed.step(batch, target).loss, reference.step(batch, target))


def resumed_adam(named: Any) -> torch.optim.Optimizer:
    """With options that the save overrules."""
    return torch.optim.AdamW([weight for _, weight in named], lr=0.5)


# other layouts


LAYOUTS: dict[str, Program] = {
    "one process": gpipe(devices=1, microbatches=4),
    "more stages": program_of("interleaved-1f1b", 2),
    "two pipes": program_of("chimera", 2),
    "more devices": zb_h1(devices=4, microbatches=4),
    "replicas": replicated(one_f_one_b(devices=2, microbatches=2), 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_layout_goes_on_with_the_same_weights_and_optimizers(
    layout: str, tmp_path: Path
) -> None:
    """With groups of weights that some stages lack, and a scheduler of schedulers."""
    settings: dict[str, Any] = {"optimizer": grouped, "scheduler": warmed}
    pipeline = pipeline_of(one_f_one_b(devices=2, microbatches=4), **settings)
    data = batches(16, 5)
    trained(pipeline, data[:2], (2,), tmp_path)
    other = pipeline_of(LAYOUTS[layout], seed=8, **settings)
    other.load(folder_of(tmp_path, 2))
    assert is_equal(state_of(other), state_of(pipeline))
    assert is_equal(optimizer_state_of(other), optimizer_state_of(pipeline))
    found, wanted = (torch.stack(trained(one, data[2:])) for one in (other, pipeline))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0.0)


def test_a_plain_loop_goes_on_from_a_save(tmp_path: Path) -> None:
    """With nothing but torch: the unsplit model, its optimizer, and torch's own tools."""
    stages = split(_undropped(), stages=2)
    pipeline = saved(tmp_path / "save", clip=None, scheduler=None, stages=stages)
    dcp_to_torch_save(tmp_path / "save", tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    model = _undropped()
    model.load_state_dict(found["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = [name for name, _ in model.named_parameters()]
    state = {index: found["optimizer"][name] for index, name in enumerate(names)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for batch, target in batches(6, 4):
        loss = squared(model(batch), target)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        torch.testing.assert_close(pipeline.step(batch, target).loss, loss.detach())


def _undropped() -> nn.Sequential:
    model = layers(LAYERS)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_a_tied_weight_is_written_once_and_found_under_all_names(tmp_path: Path) -> None:
    """Torch's own load finds it under both."""
    pipeline = pipeline_of(SYNCHRONOUS, stages=tied(2), loss=likelihood)
    trained(pipeline, words(6, 2))
    pipeline.save(tmp_path / "save")
    whole = nn.Sequential(*tied(2))
    state = {"model": whole.state_dict()}
    torch_load(state, checkpoint_id=tmp_path / "save", no_dist=True)
    whole.load_state_dict(state["model"])
    (other,) = pipeline.modules[0, 1].get_submodule("1").parameters()
    assert torch.equal(whole.get_parameter("0.0.weight"), other)
    known = json.loads((tmp_path / "save" / "weft.json").read_text())
    assert "model.0.0.weight" in known["tensors"]
    assert "model.1.1.weight" not in known["tensors"]


# staleness


def test_what_is_equally_stale_goes_on_by_another_layout(tmp_path: Path) -> None:
    """2BW needs the version before the newest, wherever a stage is: nothing has to be said."""
    pipeline = pipeline_of(pipedream_2bw(devices=2, microbatches=4))
    data = batches(12, 6)
    losses = trained(pipeline, data, (3,), tmp_path)
    other = pipeline_of(pipedream_2bw(devices=4, microbatches=4), seed=9)
    with warnings.catch_warnings(action="error"):
        other.load(folder_of(tmp_path, 3))
    found = torch.stack(trained(other, data[3:]))
    torch.testing.assert_close(found, torch.stack(losses[3:]), rtol=1e-5, atol=0.0)


def test_versions_that_are_not_there_are_reported_and_matter(tmp_path: Path) -> None:
    program = program_of("pipedream-2bw", 2)
    data = data_for(program, 5)
    losses = trained(pipeline_of(program), data, (3,), tmp_path)
    manifest = folder_of(tmp_path, 3) / "weft.json"
    known = json.loads(manifest.read_text())
    known["tensors"] = {k: v for k, v in known["tensors"].items() if not k.startswith("versions.")}
    manifest.write_text(json.dumps(known))
    resumed = pipeline_of(program)
    with pytest.warns(UserWarning, match="from the newest weights"):
        resumed.load(folder_of(tmp_path, 3))
    assert not torch.equal(torch.stack(losses[3:]), torch.stack(trained(resumed, data[3:])))


@pytest.mark.parametrize(("one", "other"), [("pipedream", "1f1b"), ("1f1b", "pipedream")])
def test_another_method_is_reported(one: str, other: str, tmp_path: Path) -> None:
    first, second = program_of(one, 2), program_of(other, 2)
    trained(pipeline_of(first, clip=None), data_for(first, 2), (2,), tmp_path)
    pipeline = pipeline_of(second, clip=None, seed=8)
    with pytest.warns(UserWarning, match=f"is of {one} and goes on by {other}"):
        pipeline.load(folder_of(tmp_path, 2))
    assert all(loss.isfinite() for loss in trained(pipeline, data_for(second, 3)))


# while training goes on


def test_a_save_has_the_values_of_its_moment(tmp_path: Path) -> None:
    """Though it is written while the next steps run, and the next save waits for it."""
    program = program_of("pipedream-2bw", 2)
    data = data_for(program, 6)
    pipeline = pipeline_of(program)
    trained(pipeline, data[:2])
    pipeline.save(folder_of(tmp_path, 2), wait=False)
    losses = trained(pipeline, data[2:4])
    pipeline.save(folder_of(tmp_path, 4), wait=False)
    losses += trained(pipeline, data[4:])
    pipeline.close()
    assert newest(tmp_path) == folder_of(tmp_path, 4)
    resumed = pipeline_of(program, seed=8)
    resumed.load(folder_of(tmp_path, 2))
    again = trained(resumed, data[2:4])
    resumed.drain()
    assert is_equal(again + trained(resumed, data[4:]), losses)


@contextmanager
def _small_files() -> Iterator[None]:
    """A disk that is full after a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_leaves_the_save_before(tmp_path: Path) -> None:
    pipeline, (batch, target) = pipeline_of(SYNCHRONOUS), data_for(SYNCHRONOUS, 1)[0]
    pipeline.save(folder_of(tmp_path, 0))
    pipeline.step(batch, target)
    with _small_files(), pytest.raises(SaveError, match="step-000001 was not saved"):
        pipeline.save(folder_of(tmp_path, 1))
    pipeline.step(batch, target)  # which it can
    with _small_files():
        pipeline.save(folder_of(tmp_path, 2), wait=False)
        with pytest.raises(SaveError, match="step-000002 was not saved"):
            pipeline.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000"]


# folders


def test_incomplete_saves_are_not_found_and_removed(tmp_path: Path) -> None:
    for updates in (2, 4, 10):
        saved(folder_of(tmp_path, updates))
    left = [tmp_path / f".step-{step:06d}.0badcafe.partial" for step in (4, 12)]
    for folder in left:
        folder.mkdir()
    folder_of(tmp_path, 20).mkdir()  # which has nothing in it
    assert newest(tmp_path) == folder_of(tmp_path, 10)
    assert newest(tmp_path / "elsewhere") is None
    prune(tmp_path, keep=2)
    kept = {"step-000004", "step-000010", "step-000020"}
    assert {path.name for path in tmp_path.iterdir()} == kept | {left[1].name}
    clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_nothing_is_written_over(tmp_path: Path) -> None:
    pipeline = saved(tmp_path / "save")
    before = (tmp_path / "save" / "weft.json").read_bytes()
    with pytest.raises(SaveError, match="is there already"):
        pipeline.save(tmp_path / "save")
    assert (tmp_path / "save" / "weft.json").read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 1


# refusals


def _longer(stages: int) -> list[nn.Module]:
    return split(layers(LAYERS + 2), stages=stages)


def _shorter(stages: int) -> list[nn.Module]:
    return split(layers(LAYERS - 2), stages=stages)


def test_gradients_that_wait_are_enlarged_as_those_they_are_added_to(tmp_path: Path) -> None:
    """A synchronous program knows at once of the update that overflowed."""
    settings = dict[str, Any](precision="fp16", scale=Scale(2.0**8, 1000), clip=None)
    first = pipeline_of(pipedream(devices=3, microbatches=1, updates=10), **settings)
    for step, (batch, target) in enumerate(batches(3, 5)):
        first.step(batch, target * (1e9 if step == 3 else 1), update=step < 4)
    first.save(tmp_path / "save")
    second = pipeline_of(one_f_one_b(devices=3, microbatches=1), **settings)
    with warnings.catch_warnings(action="ignore"):
        second.load(tmp_path / "save")
    scales, grads = [], []
    for pipeline in (first, second):
        scales.append(pipeline._parts.weights.policy.scale(5))
        weights = [weight for m in pipeline.modules.values() for weight in m.parameters()]
        grads.append([weight.grad for weight in weights if weight.grad is not None])
    assert scales[1] == scales[0] / 2
    assert all(torch.equal(one / 2, other) for one, other in zip(*grads, strict=True))


class Counting(torch.optim.Optimizer):
    """Keeps more digits than its weights have, fewer, and a count."""

    def __init__(self, named: Any) -> None:
        super().__init__([weight for _, weight in named], {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for weight in (one for group in self.param_groups for one in group["params"]):
            kept = self.state[weight]
            if not kept:
                kept["much"] = torch.zeros_like(weight, dtype=torch.float64)
                kept["little"] = torch.zeros_like(weight, dtype=torch.bfloat16)
                kept["count"] = torch.zeros((), dtype=torch.int64)
            kept["count"] += 1
            kept["much"].lerp_(weight.grad.double(), 0.3)
            kept["little"].lerp_(weight.grad.bfloat16(), 0.3)
            weight.sub_((kept["much"] + kept["little"]).float(), alpha=0.1)


def test_state_of_an_optimizer_has_its_own_types(tmp_path: Path) -> None:
    """Torch gives it that of the weights, and a run would go on with other bits."""
    first = saved(tmp_path / "save", optimizer=Counting, scheduler=None)
    second = pipeline_of(SYNCHRONOUS, optimizer=Counting, scheduler=None)
    second.load(tmp_path / "save")
    for pipeline in (first, second):
        trained(pipeline, data_for(SYNCHRONOUS, 2))
    assert is_equal(state_of(second), state_of(first))
    assert is_equal(optimizer_state_of(second), optimizer_state_of(first))


def test_a_scale_that_never_changes_is_that_of_the_run_that_goes_on(tmp_path: Path) -> None:
    saved(tmp_path / "save", precision="fp16")
    settings = dict[str, Any](precision="fp16", clip=None)
    found = []
    for scale in (8.0, 2.0**60):  # by which all overflows
        pipeline = pipeline_of(SYNCHRONOUS, scale=scale, **settings)
        pipeline.load(tmp_path / "save")
        found.append(pipeline.step(*data_for(SYNCHRONOUS, 1)[0]).is_skipped)
    assert found == [False, True]


def _momentum(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([weight for _, weight in named], lr=0.1, momentum=0.9)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more layers": ({"stages": _longer(2)}, "has no 8.0.weight, .*another model"),
    "fewer layers": ({"stages": _shorter(2)}, "has 6.0.weight, .*another one"),
    "another optimizer": ({"optimizer": _momentum}, "trained by AdamW, and is by SGD"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_changes_nothing(case: str, tmp_path: Path) -> None:
    saved(tmp_path / "save")
    settings, match = REFUSED[case]
    pipeline = pipeline_of(SYNCHRONOUS, seed=8, **settings)
    trained(pipeline, data_for(SYNCHRONOUS, 1))
    before = {name: value.clone() for name, value in state_of(pipeline).items()}
    with pytest.raises(SaveError, match=match):
        pipeline.load(tmp_path / "save")
    assert is_equal(state_of(pipeline), before)
    assert pipeline.steps == 1
    trained(pipeline, data_for(SYNCHRONOUS, 1))


def test_two_weights_that_are_one_in_the_model_are_refused(tmp_path: Path) -> None:
    """One of them would be lost."""
    saved(tmp_path / "save", stages=[nn.Linear(8, 8), nn.Linear(8, 8)])

    def one_of_two() -> list[nn.Module]:
        one, other = nn.Linear(8, 8), nn.Linear(8, 8)
        other.weight = one.weight
        return [one, other]

    for load in (
        pipeline_of(SYNCHRONOUS, stages=one_of_two()).load,
        Reference(one_of_two(), SYNCHRONOUS, loss=squared).load,
    ):
        with pytest.raises(SaveError, match=r"has 0.weight apart from 1.weight; .*are one in"):
            load(tmp_path / "save")


def test_other_shapes_and_types_are_named(tmp_path: Path) -> None:
    saved(tmp_path / "save", stages=[nn.Linear(8, 8), nn.Linear(8, 8)])
    wide = [nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.float64)]
    with pytest.raises(SaveError, match=r"1.weight float32 \[8, 8\] for float64 \[8, 8\]"):
        pipeline_of(SYNCHRONOUS, stages=wide).load(tmp_path / "save")
    with pytest.raises(SaveError, match=r"0.weight float32 \[8, 8\] for float32 \[9, 8\]"):
        pipeline_of(SYNCHRONOUS, stages=[nn.Linear(8, 9), nn.Linear(9, 8)]).load(tmp_path / "save")


def test_a_folder_that_is_no_save_is_refused(tmp_path: Path) -> None:
    pipeline = pipeline_of(SYNCHRONOUS)
    with pytest.raises(SaveError, match="is not a save of a pipeline"):
        pipeline.load(tmp_path)
    for content in (b"[]", b'{"format": ', b"\xff\xfe"):
        (tmp_path / "weft.json").write_bytes(content)
        with pytest.raises(SaveError, match=r"cannot be read: .*; use another save") as found:
            pipeline.load(tmp_path)
        assert "DecodeError" not in str(found.value)


def test_what_no_save_can_hold_is_refused(tmp_path: Path) -> None:
    pipeline, (batch, target) = pipeline_of(SYNCHRONOUS), data_for(SYNCHRONOUS, 1)[0]
    with pytest.raises(InputError, match="extra= is not JSON"):
        pipeline.save(tmp_path / "save", extra={"cursor": object()})
    pipeline.step(batch, target)
    pipeline.optimizers[0].state[torch.zeros(1)] = {"norm": 1.0}
    with pytest.raises(SaveError, match="not a weight of its stage"):
        pipeline.save(tmp_path / "save")
    assert not [*tmp_path.iterdir()]


# safety


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._path,)


def test_loading_runs_no_code_of_a_save(tmp_path: Path) -> None:
    """Neither torch's index, which is a pickle, nor a tensor that is none."""
    save, trace = tmp_path / "save", tmp_path / "it went off"
    saved(save)
    (save / ".metadata").write_bytes(pickle.dumps(Bomb(trace)))
    pipeline = pipeline_of(SYNCHRONOUS, seed=8)
    pipeline.load(save)
    known = json.loads((save / "weft.json").read_text())
    with (save / "bomb.distcp").open("wb") as file:
        torch.save(Bomb(trace), file)
        size = file.tell()
    for _, _, chunks in known["tensors"].values():
        for chunk in chunks:
            chunk[:3] = ["bomb.distcp", 0, size]
    (save / "weft.json").write_text(json.dumps(known))
    before = {name: value.clone() for name, value in state_of(pipeline).items()}
    with pytest.raises(SaveError, match="cannot be read"):
        pipeline.load(save)
    assert is_equal(state_of(pipeline), before)
    assert not trace.exists()
    with (save / ".metadata").open("rb") as file:
        pickle.load(file)  # noqa: S301 (it does go off)
    assert trace.exists()


def test_a_save_names_no_file_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path / "save")
    manifest = tmp_path / "save" / "weft.json"
    known = manifest.read_text().replace("__0_0.distcp", "../other.distcp")
    manifest.write_text(known)
    with pytest.raises(SaveError, match="not in its folder"):
        pipeline_of(SYNCHRONOUS).load(tmp_path / "save")
