"""A rank that waits for tokens ends with whoever failed, or at the deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import init_device_mesh

from tests.runtime.models import squared
from tests.runtime.ranks import Ended, outcomes
from tests.runtime.test_expert_ranks import ROWS, batch_of, blocks_of
from weft import lower
from weft.errors import WeftError
from weft.runtime import Pipeline
from weft.runtime.experts import ExpertRanks
from weft.schedules import gpipe

DEADLINE, MARK = 2.0, 100.0


def fail() -> None:
    raise ValueError("out of luck")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stall() -> None:
    time.sleep(2 * DEADLINE)


class Troubled(nn.Module):
    """Does something before it looks at a marked microbatch."""

    def __init__(self, inner: nn.Module, trouble: Callable[[], object]) -> None:
        super().__init__()
        self.inner, self.trouble = inner, trouble

    def forward(self, value: Tensor) -> Tensor:
        if not isinstance(value, FakeTensor) and float(value.max()) == MARK:
            self.trouble()
        out: Tensor = self.inner(value)
        return out


def said(trouble: Callable[[], object], is_cut: bool) -> str:
    """In each of two ranks: what a step says when the second has trouble with its attention."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("ep", "pp"))
    (block,) = blocks_of(1, ExpertRanks(mesh.get_group("ep")))
    attention = block.get_submodule("attention")
    attention.attended = Troubled(attention.get_submodule("attended"), trouble)
    program = gpipe(devices=1, microbatches=4)
    program = lower.experts(program) if is_cut else program
    batch, target = batch_of(0, 4 * ROWS)
    first = DEADLINE if trouble is stall else 30.0
    if mesh.get_local_rank("ep"):
        batch[2 * ROWS] = MARK
    try:
        with Pipeline(
            [block], program, mesh=mesh, loss=squared, deadline=30.0, first_deadline=first
        ) as pipeline:
            pipeline.step(batch, target)
    except WeftError as error:
        return str(error)
    return "nothing"


FIRST = "of the first step, in which kernels are loaded and may be compiled, or weights are read"


@pytest.mark.parametrize(
    ("trouble", "is_cut", "says"),
    [
        (fail, False, "device 1 failed at 0F6: out of luck"),
        (die, True, "device 1 died"),
        (
            stall,
            True,
            f"nothing came within the deadline of 2 s {FIRST}; first_deadline= allows for more",
        ),
    ],
    ids=["fails", "dies", "stalls"],
)
def test_who_waits_for_tokens_names_who_is_missing(
    trouble: Callable[[], object], is_cut: bool, says: str
) -> None:
    """Within a stage, and on the thread of the experts."""
    first, second = outcomes(2, said, trouble, is_cut)
    assert first == f"{says}; device 0 was waiting for the tokens of device 1"
    assert second == Ended(-signal.SIGKILL) if trouble is die else says in second
