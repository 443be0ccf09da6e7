"""Planned pipelines train as plain torch trains the unsplit model, and bitwise as the reference."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.models import adam
from tests.runtime.plain import Plain
from tests.runtime.ranks import run
from weft.cost import Device, Layout, Link, Storage, Transformer
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import replicated
from weft.models import gpt
from weft.notation import from_text
from weft.request import Passes, Plan, plan_to_json
from weft.runtime import Pipeline, Reference
from weft.runtime.planned import program_of, stages_by
from weft.runtime.stage.storage.marks import Mark, marked
from weft.schedules import one_f_one_b, zbv

LAYERS, VOCABULARY, CONTEXT, STEPS = 5, 11, 4, 2
SIZES = Transformer(
    layers=LAYERS,
    hidden=8,
    heads=2,
    ffn=32,
    vocabulary=VOCABULARY,
    sequence=CONTEXT,
    microbatch=2,
    is_gated=False,
)
DEVICE = Device(peak=1e9, bandwidth=1e9, host=Link(bandwidth=1e8))

# As a search for few activations in flight may order it: no schedule of the registry does.
FOUND = """weft program 1
name found
microbatches 4
graph chain 2
place 0 1
device 0: 0F0 0F1 0I0 0F2 0I1 0W0 0W1 0F3 0I2 0I3 0W2 0W3
device 1: 1F0 1I0 1F1 1I1 1W0 1F2 1W1 1I2 1F3 1I3 1W2 1W3
"""


def plan_of(program: Program, *layers: int, **changes: Any) -> Plan:
    layout = Layout(layers=layers, **changes.pop("layout", {}))
    return Plan(program=program, layout=layout, model=SIZES, device=DEVICE, **changes)


TWO, WAVE = one_f_one_b(devices=2, microbatches=4), zbv(devices=2, microbatches=4)
PLANS = {
    "uneven": plan_of(TWO, 1, 4, passes=Passes(recompute="1")),
    "the embedding alone": plan_of(TWO, 0, 5, storage=Storage(is_selective=True)),
    "wave": plan_of(WAVE, 2, 1, 2, 0, passes=Passes(offload="all")),
    "found": plan_of(from_text(FOUND), 3, 2, passes=Passes(offload="stage:0")),
    "replicas": plan_of(TWO, 3, 2, layout={"replicas": 2}),
}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    made = gpt(VOCABULARY, layers=LAYERS, hidden=8, heads=2, context=CONTEXT)
    return made.double()


def loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch_of(step: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    batch, target = torch.randint(VOCABULARY, (2, rows, CONTEXT), generator=generator)
    return batch, target


def reference_of(plan: Plan) -> tuple[list[float], nn.Sequential]:
    """The losses of the reference, and its model, trained."""
    whole, copies = model(), plan.layout.copies
    program = replicated(program_of(plan), copies)
    stages = stages_by(whole, plan)
    reference = Reference(stages, program, loss=loss, optimizer=adam, clip=0.5)
    rows = SIZES.microbatch * program.microbatches
    return [float(reference.step(*batch_of(step, rows))) for step in range(STEPS)], whole


def differences(pipeline: Pipeline, found: list[float], plan: Plan) -> list[str]:
    """Losses and weights that are not, bit for bit, those of the reference."""
    losses, trained = reference_of(plan)
    wanted = [stage.state_dict() for stage in stages_by(trained, plan)]  # type: ignore[union-attr]
    return [f"losses {found} instead of {losses}"] * (found != losses) + [
        f"{name} of stage {stage}"
        for (_, stage), module in pipeline.modules.items()
        for name, value in module.state_dict().items()
        if not torch.equal(value, wanted[stage][name])
    ]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_trains_as_the_reference_does(name: str) -> None:
    plan = PLANS[name]
    pipeline = Pipeline.from_plan(model(), plan, loss=loss, optimizer=adam, clip=0.5)
    rows = SIZES.microbatch * pipeline.program.microbatches
    losses = [float(pipeline.step(*batch_of(step, rows)).loss) for step in range(STEPS)]
    assert differences(pipeline, losses, plan) == []
    kinds = {Kind(int(kind)) for kind in pipeline.program.actions.kind}
    assert (Kind.R in kinds) == (plan.passes.recompute is not None)
    assert (Kind.OFFLOAD in kinds) == (plan.passes.offload is not None)
    assert (Kind.GATHER in kinds) == (plan.layout.replicas > 1)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_trains_as_plain_torch_does_without_a_cut(name: str) -> None:
    plan, whole = PLANS[name], model()
    count = plan.program.microbatches * plan.layout.copies
    plain = Plain(whole, microbatches=count, loss=loss, optimizer=adam)
    pipeline = Pipeline.from_plan(model(), plan, loss=loss, optimizer=adam)
    for step in range(STEPS):
        batch = batch_of(step, SIZES.microbatch * count)
        ours, theirs = pipeline.step(*batch).loss, plain.step(*batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    for (_, stage), module in pipeline.modules.items():
        for key, value in module.state_dict().items():
            torch.testing.assert_close(value, whole.state_dict()[key], rtol=1e-9, atol=1e-10)
        assert len([*module.children()]) == _modules(plan, stage)


def _modules(plan: Plan, stage: int) -> int:
    """Its layers, and what is around the first and the last."""
    return plan.layers[stage] + (stage == 0) + (stage == plan.program.stages - 1)


# ranks


def _trained(path: str) -> list[str]:
    plan = PLANS["replicas"]
    pipeline = Pipeline.from_plan(model(), path, loss=loss, optimizer=adam, clip=0.5)
    rows, replica = SIZES.microbatch * plan.program.microbatches, dist.get_rank() // 2
    losses = []
    for step in range(STEPS):
        batch, target = batch_of(step, 2 * rows)
        own = slice(replica * rows, (replica + 1) * rows)
        losses.append(float(pipeline.step(batch[own], target[own]).loss))
    found = differences(pipeline, losses, plan)
    pipeline.close()
    return found


def _refused(path: str) -> str:
    with pytest.raises(InputError) as caught:
        Pipeline.from_plan(model(), path, loss=loss)
    return str(caught.value)


def test_a_plan_of_a_file_trains_on_ranks_in_two_replicas(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(PLANS["replicas"]))
    assert run(4, _trained, str(path)) == [[]] * 4


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(PLANS["replicas"]))
    words = "the plan is for 4 ranks (2 replicas x 2 devices x 1 processors)"
    assert all(words in one for one in run(2, _refused, str(path)))


# models


class Residual(nn.Module):
    """A module that only tracing cuts: its forward adds what its layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        for layer in self.layers:
            value = value + layer(value)
        return value


def test_a_module_is_traced_and_cut_at_its_layers() -> None:
    torch.manual_seed(0)
    whole, data = Residual().double(), torch.randn(8, 8, dtype=torch.float64)
    plan = plan_of(TWO, 2, 3)
    stages = stages_by(copy.deepcopy(whole), plan, data)
    names = [{name for name, _ in one.named_parameters()} for one in stages]  # type: ignore[union-attr]
    assert {"layers.0.weight", "layers.1.weight"} < names[0]
    assert {f"layers.{index}.weight" for index in (2, 3, 4)} < names[1]
    mean = functional.mse_loss
    pipeline = Pipeline.from_plan(copy.deepcopy(whole), plan, example=data, loss=mean)
    assert pipeline.step(data, data).loss == pytest.approx(float(mean(whole(data), data).detach()))


def test_a_model_of_hugging_face_is_cut_between_its_layers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=8,
        intermediate_size=16,
        num_attention_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
    )
    whole = transformers.LlamaForCausalLM(config).double()
    plan = plan_of(TWO, 1, 4, storage=Storage(is_selective=True))
    words, _ = batch_of(0, 8)
    wanted = whole(input_ids=words, labels=words).loss
    pipeline = Pipeline.from_plan(whole, plan)
    marks = [len(marked(module)) for module in pipeline.modules.values()]
    assert marks == [3, 13]  # two norms and a function for each layer, and the last norm
    assert pipeline.step(words, words).loss == pytest.approx(float(wanted.detach()), rel=1e-6)
    with pytest.raises(InputError, match="the plan has 6 layers, and LlamaForCausalLM has 5"):
        stages_by(whole, plan_of_six())


def plan_of_six() -> Plan:
    more = Transformer.from_mapping({**SIZES.to_mapping(), "layers": 6})
    return Plan(program=TWO, layout=Layout(layers=(3, 3)), model=more, device=DEVICE)


def test_norms_and_activations_are_marked_where_a_plan_is_selective() -> None:
    stages = stages_by(model(), PLANS["the embedding alone"])
    found = [one for stage in stages for one in marked(stage)]  # type: ignore[arg-type]
    assert {type(one.module) for one in found} == {nn.LayerNorm, nn.GELU}
    assert {one.mark for one in found} == {Mark.AGAIN}
    assert len(found) == 3 * LAYERS + 1


WRONG: dict[str, tuple[Any, Plan, str]] = {
    "layers": (model(), plan_of_six(), "the plan has 6 layers, and this nn.Sequential has 5"),
    "stages": ([nn.Linear(8, 8)], PLANS["uneven"], "1 stages are given, and the plan has 2"),
    "module": (Residual(), PLANS["uneven"], "give example=, a batch with which it is traced"),
    "tensor": (model(), plan_of(TWO, 2, 3, layout={"tensor": 2}), "or plan with --max-tensor 1"),
    "nothing": (model(), plan_of(WAVE, 2, 0, 2, 1), "stage 1 of the plan has no layer"),
    "selective": (
        [nn.Linear(8, 8), nn.Linear(8, 8)],
        PLANS["the embedding alone"],
        "the model has none as modules",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_is_not_as_planned_is_refused(name: str) -> None:
    given, plan, words = WRONG[name]
    with pytest.raises(InputError) as caught:
        Pipeline.from_plan(given, plan, loss=loss)
    assert words in str(caught.value)
