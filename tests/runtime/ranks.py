"""What a rank does in the tests that use real processes: train, and compare with the reference."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from tests.runtime.models import WIDTH, Faulty, batches, layers, squared
from weft.cost import Cost
from weft.errors import WeftError
from weft.ir.program import Program
from weft.notation import from_text, read_cost, to_json, to_text
from weft.runtime import Pipeline, Reference, split
from weft.runtime.profile import Effort, Sample, profiled
from weft.timeline import Timeline

DEADLINE = datetime.timedelta(seconds=60)


def train_everywhere(programs: list[Program], folder: Path) -> dict[str, bool]:
    """For each program, whether every rank's weights and losses equal the reference's."""
    ranks = programs[0].devices
    texts = [to_text(program) for program in programs]
    spawn(_rank, args=(ranks, texts, str(folder)), nprocs=ranks)  # type: ignore[no-untyped-call]
    found = [(folder / f"rank{rank}").read_text().split() for rank in range(ranks)]
    return {
        f"{index}-{program.name}": all(words[index] == "equal" for words in found)
        for index, program in enumerate(programs)
    }


def _rank(rank: int, ranks: int, texts: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    _join(rank, ranks, folder)
    words = ["equal" if _is_equal(from_text(text)) else "different" for text in texts]
    Path(folder, f"rank{rank}").write_text(" ".join(words))
    dist.barrier()
    dist.destroy_process_group()


def _join(rank: int, ranks: int, folder: str) -> None:
    place = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=place, rank=rank, world_size=ranks, timeout=DEADLINE
    )


def profile_everywhere(program: Program, effort: Effort, folder: Path) -> list[Cost]:
    """The cost that every rank finds."""
    ranks = program.devices
    given = (ranks, to_text(program), effort, str(folder))
    spawn(_profiling, args=given, nprocs=ranks)  # type: ignore[no-untyped-call]
    return [read_cost(folder / f"rank{rank}") for rank in range(ranks)]


def _profiling(rank: int, ranks: int, text: str, effort: Effort, folder: str) -> None:
    torch.set_num_threads(1)
    _join(rank, ranks, folder)
    program = from_text(text)
    ((batch, target),) = batches(3, steps=1)
    stages = split(layers(program.stages), stages=program.stages)
    cost = profiled(stages, program, Sample(batch, target, squared, _adam), effort)
    Path(folder, f"rank{rank}").write_text(to_json(cost))
    dist.barrier()
    dist.destroy_process_group()


def fail_on_one(program: Program, folder: Path) -> list[str]:
    """What every rank says when the last stage fails."""
    ranks = program.devices
    spawn(_failing, args=(ranks, to_text(program), str(folder)), nprocs=ranks)  # type: ignore[no-untyped-call]
    return [(folder / f"rank{rank}").read_text() for rank in range(ranks)]


def _failing(rank: int, ranks: int, text: str, folder: str) -> None:
    torch.set_num_threads(1)
    _join(rank, ranks, folder)
    program = from_text(text)
    stages = [*(nn.Linear(WIDTH, WIDTH) for _ in range(program.stages - 1)), Faulty()]
    pipeline = Pipeline(stages, program, loss=squared)
    ((batch, target),) = batches(program.microbatches, steps=1)
    try:
        pipeline.step(batch, target)
    except WeftError as error:
        Path(folder, f"rank{rank}").write_text(str(error))


def _is_equal(program: Program) -> bool:
    whole = layers(program.stages)
    alone = copy.deepcopy(whole)
    settings = {"loss": squared, "optimizer": _adam, "clip": 0.5, "seed": 3}
    pipeline = Pipeline(split(whole, stages=program.stages), program, **settings)  # type: ignore[arg-type]
    reference = Reference(split(alone, stages=program.stages), program, **settings)  # type: ignore[arg-type]
    same = True
    for batch, target in batches(program.microbatches * 3 - 1, steps=2):
        result = pipeline.step(batch, target)
        same &= torch.equal(result.loss, reference.step(batch, target))
        same &= _is_in_order(pipeline.gathered(result))
    expected = split(alone, stages=program.stages)
    for (_, index), module in pipeline.modules.items():
        pairs = zip(module.parameters(), expected[index].parameters(), strict=True)
        same &= all(torch.equal(mine, theirs) for mine, theirs in pairs)
    return same


def _is_in_order(timeline: Timeline) -> bool:
    """Nothing started before what it reads had ended, whichever rank computed it."""
    dependencies = timeline.program.dependencies
    started, ended = timeline.start[dependencies.consumer], timeline.end[dependencies.producer]
    return bool((started >= ended).all() and timeline.start.min() == 0)


def _adam(named: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW([parameter for _, parameter in named], lr=1e-2)  # type: ignore[attr-defined]
