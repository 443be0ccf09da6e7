"""Pipelines that hold shards of the same stages: what ends one ends all, with the reason."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.runtime.ranks import run
from tests.runtime.test_inner import batch_of, blocks, cut, options_of, program_of
from weft.runtime import Pipeline

VICTIM = 2  # the second device of the first pipeline


def words_of_a_rank() -> str:
    """In each rank: what a step ends with in which one of them fails."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    stages = cut(blocks(2), mesh)
    with Pipeline(stages, program_of("1f1b"), **options_of("1f1b"), mesh=mesh) as pipeline:
        pipeline.step(*batch_of(0))
        if dist.get_rank() == VICTIM:
            stages[1].register_forward_pre_hook(fail)
        try:
            pipeline.step(*batch_of(1))
        except Exception as error:
            return "; ".join([str(error), *getattr(error, "__notes__", ())])
    return "nothing"


def fail(*_: object) -> None:
    raise ValueError("on purpose")


def test_a_failure_is_known_in_the_pipelines_beside() -> None:
    """Also where torch's own collective says no more than that a connection was closed."""
    found = run(4, words_of_a_rank)
    assert found[VICTIM] == "device 1 failed at 1F0: on purpose"
    for said in (found[0], found[1], found[3]):
        assert "device 1 failed at 1F0: on purpose" in said
    for said in (found[1], found[3]):
        assert "(in the pipeline of ranks 0 and 2)" in said
