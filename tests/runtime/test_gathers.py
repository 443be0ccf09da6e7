"""Gathers of a synchronous step: the next one begins meanwhile, and nobody reads half a weight."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.runtime.fake_device import FakeDevice
from tests.runtime.models import WIDTH, adam, batches, linear, squared
from tests.runtime.ranks import over_transports, run
from tests.runtime.test_streams import ORDERS, bound
from weft.errors import NonfiniteError, WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import executable, replicated
from weft.runtime import Pipeline, Reference
from weft.runtime.lane.plan import Planner
from weft.runtime.lane.streams import Streams
from weft.runtime.ranks.clock import Recording
from weft.runtime.result import Result
from weft.runtime.weights.gather import Gather
from weft.schedules import chimera, interleaved_1f1b
from weft.simulate import simulate

PROGRAM = chimera(devices=2, microbatches=4)
DATA = batches(8, 4)
SLOW = 0.1  # seconds in which somebody who does not wait would have read


def pipeline_of(stages: list[nn.Module] | None = None, **options: Any) -> Pipeline:
    """Two stages, with a copy of each on both ranks."""
    given = dict[str, Any](loss=squared, optimizer=adam, shard_optimizer=True) | options
    return Pipeline(linear(2) if stages is None else stages, PROGRAM, **given)


def slowed(pipeline: Pipeline, call: Callable[[], object] = lambda: time.sleep(SLOW)) -> None:
    """Let all gathers be late."""
    for gather in pipeline._parts.weights._gathers.values():
        late(gather, call)


def late(gather: Gather, call: Callable[[], object]) -> None:
    right = gather.write

    def write(update: int) -> None:
        call()
        right(update)

    gather.write = write  # type: ignore[method-assign]


def weights_of(pipeline: Pipeline) -> dict[int, list[Any]]:
    return {
        stage: [weight.tolist() for weight in module.parameters()]
        for (_, stage), module in pipeline.modules.items()
    }


# what overlaps


class Signal(Event):
    """The same for all copies of a module."""

    def __deepcopy__(self, memo: Any) -> Signal:
        return self


class Noting(nn.Module):
    """A layer that says when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.has_run = nn.Linear(WIDTH, WIDTH), Signal()

    def forward(self, value: Tensor) -> Tensor:
        if type(value) is Tensor and not value.is_meta:
            self.has_run.set()
        out: Tensor = self.line(value)
        return out


def overlap(transport: Any) -> list[bool]:
    """In each rank: whether stages of the second step ran before the gathers of the first ended.

    reduce    ... gather of stage 0     gather of stage 1 ...............................
    compute                   UPDATE    F of stage 0, for which that waits   F of stage 1
    """
    first, second = Noting(), Noting()
    pipeline = pipeline_of([first, second], transport=transport, deadline=100)
    gather = pipeline._parts.weights._gathers
    found = list[bool]()

    def overlapped() -> None:
        if not found:
            found.extend([first.has_run.wait(60), second.has_run.wait(SLOW)])

    pipeline.step(*DATA[0])
    pipeline.modules  # noqa: B018 (waits for all gathers)
    late(gather[1, None], overlapped)
    for module in (first, second):
        late(gather[0, None], module.has_run.clear)  # no forward runs any more, or yet
    pipeline.step(*DATA[1])
    pipeline.step(*DATA[2])
    pipeline.close()
    return found


def test_a_forward_waits_for_the_gather_of_its_own_stage_alone() -> None:
    """While stage 1 is gathered, stage 0 of the next step runs, and stage 1 does not."""
    assert over_transports(2, overlap) == [[[True, False]] * 2] * 2


def launched(program: Program, *, is_gated: bool) -> FakeDevice:
    """A fake device with the launches of two steps, and then of somebody who reads weights."""
    fake = FakeDevice()
    binder = bound(program, 0, fake)
    drive = Streams(binder.program, fake)
    if not is_gated:
        drive.gate = lambda: None  # type: ignore[assignment,method-assign,return-value]
    planner = Planner(binder, simulate(binder.program), drive)
    for lap in range(2):
        for row, step in binder.steps.items():
            step._row = named(row, lap)
        drive.run(planner.until(program.microbatches * (lap + 1)), lap, Recording(fake))
        drive.end_step()
    drive.finish()
    fake.launch("reader")
    return fake


def named(row: int, lap: int) -> str:
    return f"{row} in step {lap}"


def is_whole(program: Program, order: list[object]) -> bool:
    """Whether every forward of the second step comes after the gather of its stage."""
    place = {name: index for index, name in enumerate(order)}
    kind, stage, is_mine = program.actions.kind, program.actions.stage, program.device_of == 0
    pairs = [
        (named(gather, 0), named(row, 1))
        for gather in np.flatnonzero((kind == Kind.GATHER) & is_mine).tolist()
        for row in np.flatnonzero((kind == Kind.F) & is_mine & (stage == stage[gather])).tolist()
    ]
    assert pairs
    return all(place[before] < place[after] for before, after in pairs)


def test_on_a_device_the_next_forwards_wait_for_the_event_of_their_gather() -> None:
    """Whatever order streams take; without the gates, some order is wrong."""
    program = executable(PROGRAM, is_sharded=True)
    orders = [launched(program, is_gated=True).run(seed) for seed in ORDERS]
    assert all(is_whole(program, order) for order in orders)
    assert all(order[-1] == "reader" for order in orders)
    first = {
        order.index(named(int(np.argmax(program.actions.kind == Kind.F)), 1)) for order in orders
    }
    last = int(np.flatnonzero((program.actions.kind == Kind.GATHER) & (program.device_of == 0))[-1])
    assert min(first) < max(order.index(named(last, 0)) for order in orders)  # they overlap
    loose = [launched(program, is_gated=False).run(seed) for seed in ORDERS]
    assert not all(is_whole(program, order) for order in loose)


# the same bits


def compared(replicas: int) -> list[str]:
    """In each rank of as many replicas, a device each: what differs from the reference."""
    mesh = init_device_mesh("cpu", (replicas, 1), mesh_dim_names=("dp", "pp"))
    program = interleaved_1f1b(devices=1, microbatches=2, stages_per_device=3)
    wanted = linear(3)
    reference = Reference(wanted, replicated(program, replicas), loss=squared, optimizer=adam)
    pipeline = Pipeline(
        linear(3), program, mesh=mesh, loss=squared, optimizer=adam, shard_optimizer=True
    )
    slowed(pipeline)
    found, own = [], slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    for batch, target in batches(4 * replicas, 3):
        loss = float(pipeline.step(batch[own], target[own]).loss)
        if loss != float(reference.step(batch, target)):
            found.append("a loss")
    for (_, stage), module in pipeline.modules.items():
        pairs = zip(module.parameters(), wanted[stage].parameters(), strict=True)
        found += [f"stage {stage}" for pair in pairs if not torch.equal(*pair)]
    pipeline.close()
    return found


@pytest.mark.parametrize("replicas", [2, 3])
def test_late_gathers_change_no_bit(replicas: int) -> None:
    assert run(replicas, compared, replicas) == [[]] * replicas


def left_out() -> list[bool]:
    """In each rank: whether steps without an update, and one that is refused, change nothing."""
    found = []
    for pipeline in (pipeline_of(), alone()):
        slowed(pipeline)
        for step, (batch, target) in enumerate(DATA):
            pipeline.step(batch, target, update=step % 2 == 1)
        with pytest.raises(NonfiniteError):
            pipeline.step(batch * torch.inf, target)
        pipeline.step(batch, target)
        found.append(weights_of(pipeline))
        pipeline.close()
    sharded, whole = found
    return [sharded[stage] == whole[stage] for stage in sharded]


def test_steps_that_update_nothing_leave_gathers_as_they_are() -> None:
    assert run(2, left_out) == [[True, True]] * 2


# who reads


def saved(pipeline: Pipeline, folder: Path) -> dict[int, list[Any]]:
    """What somebody reads who loads what is saved now."""
    pipeline.save(folder)
    again = alone()
    again.load(folder)
    return weights_of(again)


def alone() -> Pipeline:
    """In one process, where updates are not shared."""
    return pipeline_of(transport="loopback", shard_optimizer=False)


def closed(pipeline: Pipeline) -> dict[int, list[Any]]:
    pipeline.close()
    return weights_of(pipeline)


def recorded(pipeline: Pipeline, ran: Result) -> int:
    """Gathers of this process in the timeline of a step."""
    timeline = ran.timeline
    is_here = np.isin(timeline.program.device_of, pipeline._world.devices)
    rows = np.flatnonzero((timeline.program.actions.kind == Kind.GATHER) & is_here)
    return int((timeline.end[rows] > 0).sum())


def reading(folder: str, transport: Any) -> list[str]:
    """In each rank: who has not seen the whole weights right after a step."""
    readers: dict[str, Callable[[Pipeline], Any]] = {
        "evaluate": lambda one: one.evaluate(*DATA[3]).loss.item(),
        "predict": lambda one: one.predict(DATA[3][0], everywhere=True).tolist(),
        "modules": weights_of,
        "save": lambda one: (
            saved(one, Path(folder) / transport) if one is shared else weights_of(one)
        ),
        "close": closed,
    }
    found, shared, other = [], pipeline_of(transport=transport), alone()
    slowed(shared)
    for name, reader in readers.items():
        ran = shared.step(*DATA[0])
        other.step(*DATA[0])
        seen, wanted = reader(shared), reader(other)
        if isinstance(seen, dict):
            wanted = {stage: wanted[stage] for stage in seen}
        found += [] if seen == wanted else [name]
        found += [] if recorded(shared, ran) == 2 else [f"the timeline, after {name}"]
    return found


def test_whoever_reads_after_a_step_sees_whole_weights(tmp_path: Path) -> None:
    assert over_transports(2, reading, str(tmp_path)) == [[[]] * 2] * 2


# ends


def lately(send: Callable[..., None], *given: Any) -> None:
    time.sleep(SLOW)
    send(*given)


def ending() -> list[bool]:
    """In each rank: whether its weights are whole; rank 0 ends at once, and sends its part late."""
    pipeline, other = pipeline_of(), alone()
    other.step(*DATA[0])
    if dist.get_rank() == 0:
        for gather in pipeline._parts.weights._gathers.values():
            gather._lines.send = partial(lately, gather._lines.send)  # type: ignore[method-assign]
    pipeline.step(*DATA[0])
    if dist.get_rank() == 0:
        return []
    wanted = weights_of(other)
    return [weights == wanted[stage] for stage, weights in weights_of(pipeline).items()]


def test_a_rank_that_ends_without_closing_sends_its_part_first() -> None:
    assert run(2, ending) == [[], [True, True]]


def failing() -> list[str]:
    """In each rank: what a step says, and then a reader; on rank 1 a gather of the first failed."""
    pipeline = pipeline_of(deadline=20)
    pipeline.step(*DATA[0])
    weights_of(pipeline)
    if dist.get_rank() == 1:
        late(pipeline._parts.weights._gathers[0, None], broken)
    pipeline.step(*DATA[1])
    said = []
    for call in (lambda: pipeline.step(*DATA[2]), lambda: pipeline.modules):
        try:
            call()
        except WeftError as error:
            said.append(str(error))
    pipeline.close()
    return said


def broken() -> None:
    raise ValueError("out of luck")


def test_a_gather_that_fails_ends_the_next_step_everywhere() -> None:
    """And weights that are not whole are given to nobody."""
    one, other = run(2, failing)
    assert "device 1 failed at gather:0@0" in one[0]
    assert "out of luck" in one[0]
    assert len(other) == 2
    assert all("out of luck" in said for said in other)
