"""Where torch makes tensors that nobody places is the user's affair: nothing here goes by it.

Under the default device `meta`, whatever the runtime did not place itself would have no values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.models import batches, layers, plain_descent, squared
from tests.runtime.ranks import TRANSPORTS, run
from weft.ir.program import Program
from weft.lower import recompute
from weft.runtime import Pipeline, Reference, split
from weft.runtime.profile import BRIEF, Sample, profiled
from weft.schedules import chimera, naive_async, one_f_one_b, pipedream_2bw, zbv

DATA = batches(8, 3)
PROGRAMS: dict[str, tuple[Program, dict[str, Any]]] = {
    "zbv": (zbv(devices=2, microbatches=4), {"clip": 0.1}),
    "chimera": (chimera(devices=2, microbatches=4), {}),
    "1f1b, offloaded": (one_f_one_b(devices=2, microbatches=4), {"offload": "all"}),
    "1f1b, recomputed": (recompute(one_f_one_b(devices=2, microbatches=4)), {"clip": 0.1}),
    "1f1b, sharded": (one_f_one_b(devices=2, microbatches=4), {"shard_optimizer": True}),
    "pipedream-2bw": (pipedream_2bw(devices=2, microbatches=4), {}),
    "naive-async": (naive_async(devices=2, microbatches=1), {}),
}
every = pytest.mark.parametrize("name", PROGRAMS)


def train(name: str, folder: Path, place: str = "meta", transport: str = "auto") -> list[str]:
    """Losses, saved once in between, and weights of this process."""
    program, options = PROGRAMS[name]
    more: dict[str, Any] = {"loss": squared, "optimizer": plain_descent, "transport": transport}
    stages, others = (split(layers(4), stages=program.stages) for _ in range(2))
    with torch.device(place):
        with Pipeline(stages, program, **more, **options) as pipeline:
            first = pipeline.step(*DATA[0]).loss
            pipeline.save(folder / name)
        with Pipeline(others, program, **more, **options) as pipeline:
            pipeline.load(folder / name)
            others_found = [pipeline.step(*one).losses.sum() for one in DATA[1:]]
            evaluated = pipeline.evaluate(*DATA[0]).loss
            weights = [w for module in pipeline.modules.values() for w in module.parameters()]
            numbers = [first, *others_found, evaluated, *(w.detach().sum() for w in weights)]
    return [float(number).hex() for number in numbers]


@every
def test_a_pipeline_of_one_process(name: str, tmp_path: Path) -> None:
    found = train(name, tmp_path / "meta")
    assert found == train(name, tmp_path / "cpu", "cpu")


def both(name: str, folder: Path, transport: str) -> tuple[list[str], list[str]]:
    meta = train(name, folder / f"meta {transport}", "meta", transport)
    return meta, train(name, folder / f"cpu {transport}", "cpu", transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks(transport: str, tmp_path: Path) -> None:
    for name in PROGRAMS:
        for meta, cpu in run(2, both, name, tmp_path, transport):
            assert meta == cpu, name


def test_the_reference() -> None:
    found = []
    for place in ("meta", "cpu"):
        stages = split(layers(4), stages=4)
        with torch.device(place):
            program, loss = PROGRAMS["zbv"][0], squared
            reference = Reference(stages, program, loss=loss, optimizer=plain_descent, clip=0.1)
            found.append([float(reference.step(*one)) for one in DATA])
    assert found[0] == found[1]


def test_a_split_that_is_compared_with_the_whole() -> None:
    model = layers(4)
    with torch.device("meta"):
        assert len(split(model, example=DATA[0][0], cuts=["2"])) == 2


def test_a_profile() -> None:
    sample, program = (
        Sample(*DATA[0], squared, plain_descent),
        one_f_one_b(devices=2, microbatches=2),
    )
    stages = split(layers(4), stages=2)
    with torch.device("meta"):
        cost = profiled(stages, program, sample, BRIEF)
    assert min(cost.times.forward) > 0
