"""Where ranks compute: which device is theirs, and what a process group is used for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.runtime.models import batches, linear, plain_descent, squared
from tests.runtime.ranks import over_transports, run
from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.kinds import Direction
from weft.runtime import Pipeline
from weft.runtime.device.place import (
    current,
    name_for_nccl,
    place_of,
    refuse_idle_gpus,
    refuse_shared_gpus,
)
from weft.runtime.ranks.carriers import Carrier
from weft.runtime.stage.shapes import StageShapes
from weft.runtime.stage.values import Value
from weft.runtime.transport.message import Message
from weft.schedules import one_f_one_b, zbv

CPU, META = torch.device("cpu"), torch.device("meta")
PROGRAM = zbv(devices=2, microbatches=4)  # stages 0 and 3 on device 0
DATA = batches(4, 2)


def trained(stages: list[nn.Module], transport: Carrier = "auto") -> Pipeline:
    return Pipeline(stages, PROGRAM, loss=squared, optimizer=plain_descent, transport=transport)


def losses(pipeline: Pipeline) -> list[str]:
    return [float(pipeline.step(*one).loss).hex() for one in DATA]


# the device of a rank


def test_a_rank_computes_where_its_own_stages_are() -> None:
    stages = [linear(1)[0].to(device) for device in (META, CPU, CPU, META)]
    assert place_of(stages, [1, 2]) == CPU
    assert place_of(stages, [0, 3]) == META


def test_stages_without_weights_are_where_the_first_weight_is() -> None:
    stages = [nn.Tanh(), linear(1)[0].to(META)]
    assert place_of(stages, [0]) == META
    assert place_of([nn.Tanh()], [0]) == CPU


def test_stages_of_a_rank_on_two_devices_are_refused() -> None:
    stages = [linear(1)[0].to(device) for device in (CPU, META)]
    with pytest.raises(InputError, match="stage 0 is on cpu and stage 1 on meta, and one process"):
        place_of(stages, [0, 1])
    with pytest.raises(InputError, match="move the stages of a process to one device"):
        Pipeline(stages, one_f_one_b(devices=2, microbatches=4), loss=squared)


def train_own_stages(transport: Carrier) -> list[str]:
    """In each rank: the stages of the other are not even there."""
    stages = linear(4)
    for index, device in enumerate(PROGRAM.placement.pipes[0]):
        if device != dist.get_rank():
            stages[index] = stages[index].to(META)
    with trained(stages, transport) as pipeline:
        return losses(pipeline)


def test_a_rank_needs_memory_for_its_own_stages_alone() -> None:
    alone = losses(trained(linear(4)))
    assert over_transports(2, train_own_stages) == [[alone] * 2] * 2


def test_shapes_are_known_wherever_stages_and_data_are() -> None:
    """Also of a microbatch on another device than the stages, as loaders give it."""
    for places in ((META, CPU), (CPU, META), (CPU, CPU)):
        stages = [stage.to(device) for stage, device in zip(linear(2), places, strict=True)]
        batch, target = (Value.of(part[:1].to(META), "data") for part in DATA[0])
        shapes = StageShapes(stages, Graph.chain(2), squared, CPU)
        shapes.begin([batch], [target])
        assert shapes.of(Message(0, Direction.ACTIVATION, 0))() is not None
        with pytest.raises(InputError, match="stage 0 does not fit"):
            shapes.begin([Value.of(torch.zeros(1, 99), "data")], [target])


def test_a_gpu_is_the_current_one_where_its_stages_run(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = list[torch.device]()
    monkeypatch.setattr(torch.cuda, "device", entered.append)
    gpu = torch.device("cuda", 3)
    for device in (CPU, gpu):
        current(device)
    assert entered == [gpu]


# the process group


def test_stages_that_were_left_on_the_cpu_are_refused() -> None:
    with pytest.raises(InputError, match=r"move them with stage\.to\('cuda'\)"):
        refuse_idle_gpus(CPU, "nccl")
    refuse_idle_gpus(CPU, "gloo")
    refuse_idle_gpus(torch.device("cuda", 0), "nccl")


def train_beside_nccl(transport: Carrier) -> str | list[str]:
    dist.get_backend = lambda _=None: "nccl"  # type: ignore[assignment,return-value]
    try:
        with Pipeline(linear(4), PROGRAM, loss=squared, transport=transport) as pipeline:
            return losses(pipeline)
    except InputError as error:
        return str(error)


def test_a_group_of_gpus_with_stages_on_cpus_is_refused_unless_asked_for() -> None:
    for said in run(2, train_beside_nccl, "auto"):
        assert "the process group is one of GPUs (nccl), but the stages of this rank" in said
    alone = losses(Pipeline(linear(4), PROGRAM, loss=squared))
    assert run(2, train_beside_nccl, "shared") == [alone] * 2


def test_two_ranks_on_one_gpu_are_refused_before_nccl_does() -> None:
    refuse_shared_gpus(["GPU-a", "GPU-b"])
    text = r"ranks 0 and 2 are on one GPU, .*set_device\(.*'LOCAL_RANK'.*transport='peer'"
    with pytest.raises(InputError, match=text):
        refuse_shared_gpus(["GPU-a", "GPU-b", "GPU-a"])


def test_nccl_takes_two_hosts_of_its_own_naming_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for host in ("one", "other"):
        monkeypatch.setenv("NCCL_HOSTID", host)
        names.append(name_for_nccl("GPU-a"))
    refuse_shared_gpus(names)
    with pytest.raises(InputError):
        refuse_shared_gpus([*names, names[0]])


class NothingButAStore(dist.ProcessGroup):
    """A group that can do nothing for tensors of a CPU, as one of NCCL alone."""


def train_by_the_store(folder: str, transport: Carrier) -> list[str]:
    rank, joined = dist.get_rank(), dist.group.WORLD  # kept, as the other may still be joining
    dist.destroy_process_group()
    make: Any = NothingButAStore
    dist.Backend.register_backend(
        "nothing", lambda store, rank, size, timeout: make(rank, size), devices=["cpu"]
    )
    at = f"file://{folder}/{transport}"
    dist.init_process_group("nothing", init_method=at, rank=rank, world_size=2)
    with pytest.raises(Exception, match=r"(?i)backend|not implemented|support"):
        dist.all_reduce(torch.zeros(1))
    with trained(linear(4), transport) as pipeline:
        found = losses(pipeline)
        pipeline.gathered(pipeline.step(*DATA[0]))
        pipeline.all_copies()
        pipeline.evaluate(*DATA[0])
    del joined
    return found


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_the_default_group_is_used_for_its_store_alone(transport: Carrier, tmp_path: Path) -> None:
    alone = losses(trained(linear(4)))
    assert run(2, train_by_the_store, str(tmp_path), transport) == [alone] * 2
