"""Sums of gradients over copies: by whatever way, the same as those of the reference."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.runtime.models import adam, batches, linear, squared
from tests.runtime.ranks import Ended, over_transports, run
from tests.runtime.test_replicas import ORDERS, batch_of, by_reference, program_of, stages_of
from weft.errors import InputError, RankError
from weft.lower import replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.losses import CrossEntropy
from weft.runtime.transport.collectives import GlooSums
from weft.runtime.weights.lines import Lines
from weft.schedules import one_f_one_b

COPIES, STEPS = 3, 3
WEIGHTS = sum(weight.numel() for weight in linear(1)[0].parameters())


@contextmanager
def counted() -> Iterator[list[int]]:
    """Elements that this rank sends to other copies."""
    found, right = list[int](), Lines.send

    def send(lines: Lines, turn: int, values: Any) -> None:
        def noted(copy: int, copies: Any) -> Any:
            sent = values(copy, copies)
            found.extend(one.numel() for one in sent if isinstance(one, Tensor))
            return sent

        right(lines, turn, noted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lines, "send", send)
        yield found


def of_copies(**options: Any) -> tuple[Pipeline, slice]:
    """A stage on each of three ranks, and which rows of a batch are this rank's."""
    mesh = init_device_mesh("cpu", (COPIES, 1), mesh_dim_names=("dp", "pp"))
    program = one_f_one_b(devices=1, microbatches=2)
    given = {"loss": squared, "optimizer": adam} | options
    own = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    return Pipeline(linear(1), program, mesh=mesh, **given), own


# in one order


def divided(transport: Any) -> tuple[list[str], int]:
    """In each rank: what differs from the reference, and what it sends to others in a step."""
    program = replicated(one_f_one_b(devices=1, microbatches=2), COPIES)
    found = list[str]()
    for options in ({"clip": 0.01}, {"clip": 0.01, "shard_optimizer": True}, {}):
        clip: Any = options.get("clip")
        wanted = linear(1)
        reference = Reference(wanted, program, loss=squared, optimizer=adam, clip=clip)
        pipeline, own = of_copies(transport=transport, **options)
        for batch, target in batches(4 * COPIES, STEPS):
            with counted() as sent:
                loss = float(pipeline.step(batch[own], target[own]).loss)
            if loss != float(reference.step(batch, target)):
                found.append(f"a loss, with {options}")
        ((_, module),) = pipeline.modules.items()
        pairs = zip(module.parameters(), wanted[0].parameters(), strict=True)
        found += [f"a weight, with {options}" for pair in pairs if not torch.equal(*pair)]
        pipeline.close()
    return found, sum(sent)


def test_three_copies_sum_parts_and_send_each_other_the_sums() -> None:
    """The bits of a sum in the order of the pipes, and 4/3 of the gradients in place of 2."""
    for by_rank in over_transports(COPIES, divided):
        assert [found for found, _ in by_rank] == [[]] * COPIES
        assert sum(sent for _, sent in by_rank) == 2 * (COPIES - 1) * WEIGHTS


# by the library


def by_library(names: list[str], order: str) -> list[list[str]]:
    """In each rank: what is not within rounding of the reference, schedule by schedule."""
    sizes, dims = {"dp": 2, "pp": 2}, ORDERS[order]
    mesh = init_device_mesh("cpu", tuple(sizes[one] for one in dims), mesh_dim_names=dims)
    return [differences(name, mesh) for name in names]


def differences(name: str, mesh: DeviceMesh) -> list[str]:
    program, found = program_of(name), list[str]()
    for clip, is_sharded in ((0.5, False), (None, True)):
        losses, wanted = by_reference(name, clip)
        pipeline = Pipeline(
            stages_of(program.stages),
            program,
            mesh=mesh,
            loss=CrossEntropy(),
            optimizer=adam,
            clip=clip,
            seed=5,
            shard_optimizer=is_sharded,
            reduce="library",
        )
        rows, replica = 2 * program.microbatches, mesh.get_local_rank("dp")
        own = slice(replica * rows, (replica + 1) * rows)
        for step, loss in enumerate(losses):
            batch, target = (data[own] for data in batch_of(step, 2 * rows))
            with counted() as sent:
                seen = float(pipeline.step(batch, target).loss)
            found += [] if seen == pytest.approx(loss, rel=1e-6) else [f"loss {step}"]
        found += ["gradients are sent as messages"] if sum(sent) and not is_sharded else []
        if pipeline.is_asynchronous:
            pipeline.drain()
        for (_, stage), module in pipeline.modules.items():
            for pair in zip(module.parameters(), wanted[stage].parameters(), strict=True):
                is_near = torch.allclose(*pair, rtol=1e-6, atol=1e-12)
                found += [] if is_near else [f"a weight of stage {stage}"]
        pipeline.close()
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_sums_of_the_library_agree_with_the_reference(order: str) -> None:
    names = ["1f1b", "chimera", "pipedream-2bw"] if order == "dp, pp" else ["zbv"]
    assert run(4, by_library, names, order) == [[[]] * len(names)] * 4


def uneven(transport: Any) -> list[str]:
    """In each of three ranks, whose shares are not of one size: what is far from the reference."""
    wanted = linear(1)
    program = replicated(one_f_one_b(devices=1, microbatches=2), COPIES)
    reference = Reference(wanted, program, loss=squared, optimizer=adam)
    pipeline, own = of_copies(transport=transport, shard_optimizer=True, reduce="library")
    for batch, target in batches(4 * COPIES, STEPS):
        pipeline.step(batch[own], target[own])
        reference.step(batch, target)
    ((_, module),) = pipeline.modules.items()
    pairs = zip(module.named_parameters(), wanted[0].parameters(), strict=True)
    found = [name for (name, one), two in pairs if not torch.allclose(one, two, rtol=1e-5)]
    pipeline.close()
    return found


def test_shares_of_unequal_sizes_are_scattered_by_the_library() -> None:
    assert over_transports(COPIES, uneven) == [[[]] * COPIES] * 2


# when something goes wrong


def failing(how: str) -> tuple[str, float]:
    """In each rank: what a step says, and how many seconds that took; device 2 does not sum."""
    pipeline, own = of_copies(reduce="library", deadline=2.0)
    ((batch, target),) = batches(4 * COPIES, 1)
    pipeline.step(batch[own], target[own])
    if dist.get_rank() == COPIES - 1:

        def summed(sums: GlooSums, tensor: Tensor) -> Tensor:
            if how == "dies":
                os._exit(1)
            time.sleep(6)
            return tensor

        GlooSums.summed = summed  # type: ignore[assignment,method-assign]
    began = time.monotonic()
    try:
        pipeline.step(batch[own], target[own])
    except RankError as error:
        return str(error), time.monotonic() - began
    return "nothing", 0.0


def test_a_rank_that_dies_in_a_sum_is_named() -> None:
    *found, dead = run(COPIES, failing, "dies")
    assert isinstance(dead, Ended)
    for device, (said, seconds) in enumerate(found):
        assert said == f"device 2 died; device {device} was waiting for a sum of gradients"
        assert seconds < 10


def test_a_rank_that_is_late_for_a_sum_ends_it_within_the_deadline() -> None:
    found = run(COPIES, failing, "sleeps")
    assert any("nothing came within the deadline of 2 s" in said for said, _ in found)
    for said, seconds in found[:2]:
        assert said != "nothing"
        assert seconds < 10


def test_a_way_of_summing_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="use 'ordered' or 'library'"):
        Pipeline(linear(1), one_f_one_b(devices=1, microbatches=2), loss=squared, reduce="tree")  # type: ignore[arg-type]
