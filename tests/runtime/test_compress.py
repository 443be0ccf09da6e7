"""Compression: what crosses devices is rounded, exactly as the reference rounds it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.asynchrony import cases
from tests.runtime.exactness import differences, differences_of
from tests.runtime.meshes import meshes
from tests.runtime.models import WIDTH, adam, batches, linear, plain_descent, squared
from tests.runtime.ranks import over_transports
from tests.runtime.test_both import differences as of_both
from tests.runtime.test_branches import GRAPHS, modules, programs
from tests.runtime.test_carries import masked, program_of, stages
from tests.runtime.test_exact import SYNCHRONOUS
from tests.runtime.test_exact import program_of as of_schedule
from tests.runtime.test_nccl import layout, nccl, no_streams, route
from weft.errors import Disagreement, InputError, NonfiniteError
from weft.ir.kinds import Direction
from weft.ir.program import Program
from weft.lower import recompute, replicated
from weft.runtime import Compression, Pipeline, Reference
from weft.runtime.compression import bytes_in
from weft.runtime.profile.sample import StageValues
from weft.runtime.reference import Method, synchronous
from weft.runtime.reference.rounding import rounded
from weft.runtime.stage.values import Value
from weft.runtime.transport import OrderedTransport
from weft.runtime.transport.compressed import Compressed, packed, unpacked, unpacked_layout
from weft.runtime.transport.loopback import Loopback
from weft.runtime.transport.message import Fixed, TensorShape, Unknown, layout_of
from weft.runtime.transport.narrow import narrowed, widened
from weft.schedules import (
    Schedule,
    chimera,
    gpipe,
    one_f_one_b,
    pipedream_2bw,
    zbv,
)

FP8 = torch.float8_e4m3fn, torch.float8_e5m2
SCALED = torch.float16, *FP8
WIDE = torch.float64, torch.float32, torch.bfloat16, torch.float16
MIXED = Compression(activations="fp8", gradients="bf16")
ALWAYS = (True,) * 3

__all__ = ["no_streams"]  # which the tests of NCCL need


def arrived(value: Tensor, dtype: torch.dtype) -> Tensor:
    return widened(narrowed(value, dtype), TensorShape.of(value), dtype)


# one tensor


def tensors(dtype: torch.dtype, count: int) -> list[Tensor]:
    """Of all magnitudes that the type has, some of them with values that are not finite."""
    info, chance = torch.finfo(dtype), random.Random(0)
    lowest = round(math.log2(info.smallest_normal * info.eps))
    torch.manual_seed(0)
    found = []
    for number in range(count):
        exponent = chance.randint(lowest, round(math.log2(info.max)) - 1)
        spread = 2.0 ** -torch.randint(chance.randint(1, 60), (40,)).double()
        value = (torch.rand(40, dtype=torch.float64) * 4 - 2) * spread
        value = (value * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)).to(dtype)
        if number % 3 == 0:
            value[:3] = torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype)
        if number % 5 == 0:
            value[3], value[4] = info.max, info.min
        found.append(value)
    return [*found, torch.zeros(40, dtype=dtype)]


@pytest.mark.parametrize("wanted", [torch.bfloat16, *SCALED], ids=str)
def test_ranks_round_as_the_reference_does(wanted: torch.dtype) -> None:
    for dtype in (one for one in WIDE if one.itemsize > wanted.itemsize):
        for value in tensors(dtype, 60):
            one, other = arrived(value, wanted), rounded(value, wanted)
            assert torch.equal(one.isnan(), other.isnan())
            assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
            assert torch.equal(one.signbit()[~one.isnan()], other.signbit()[~one.isnan()])


@pytest.mark.parametrize("wanted", SCALED, ids=str)
def test_what_is_finite_stays_so_and_what_is_not_stays_so(wanted: torch.dtype) -> None:
    """At either end of the range of its type, where a scale could overflow or vanish."""
    for dtype in (one for one in WIDE if one.itemsize > wanted.itemsize):
        for value in tensors(dtype, 60):
            found = arrived(value, wanted)
            assert torch.equal(found.isfinite(), value.isfinite())
            known = value[value.isfinite()].double()
            error = (found[value.isfinite()].double() - known).abs()
            least = known.abs().max() * 2 * torch.finfo(wanted).smallest_normal
            allowed = torch.finfo(wanted).eps * torch.maximum(known.abs(), least)
            assert bool((error <= allowed + torch.finfo(dtype).smallest_normal).all())


def test_infinities_arrive_in_16_bits_and_as_nan_in_8() -> None:
    value = torch.tensor([math.inf, -math.inf, 1e-3, 1e3, 0.0])
    for wanted in (torch.bfloat16, torch.float16):
        assert arrived(value, wanted)[:2].tolist() == [math.inf, -math.inf]
    for wanted in FP8:
        assert arrived(value, wanted).isnan().tolist() == [True, True, False, False, False]


def test_a_power_of_two_changes_nothing_that_fits() -> None:
    """So numbers of few digits arrive as they were, however large they are together."""
    whole = torch.arange(-2048, 2049.0)
    for factor in (1.0, 2.0**90, 2.0**-120):
        assert torch.equal(arrived(whole * factor, torch.float16), whole * factor)
    few = torch.tensor([1.0, 1.5, -1.75, 0.125, 0.0, 1.25])
    for wanted in FP8:
        assert torch.equal(arrived(few * 2.0**100, wanted), few * 2.0**100)


@pytest.mark.parametrize("wanted", [torch.bfloat16, *SCALED], ids=str)
def test_no_host_waits_for_a_value(wanted: torch.dtype) -> None:
    """A tensor without values can be compressed: nothing depends on them but other tensors."""
    value = torch.empty(3, 5, device="meta")
    assert arrived(value, wanted).shape == value.shape


# messages


def test_a_message_has_one_layout_whatever_it_carries() -> None:
    value = Value.of({"x": torch.randn(4, 6), "ids": torch.arange(9), "one": torch.ones(2)}, "")
    sent = value.packed()
    for wanted in SCALED:
        content = packed(sent, wanted)
        assert layout_of(content) == layout_of(packed([torch.inf * sent[0], *sent[1:]], wanted))  # type: ignore[operator]
        assert unpacked_layout(layout_of(content)) == layout_of(sent)
        assert content[0].nbytes == 24 * wanted.itemsize + 8
        assert content[1] is sent[1], "integers stay as they are"
        assert content[2] is sent[2], "so does what would not become smaller"
        found = Value.unpacked(unpacked(content, wanted))
        assert found.structure == value.structure
        assert torch.equal(found.leaves[0], rounded(value.leaves[0], wanted))


def test_gradients_that_are_not_there_have_no_place() -> None:
    sent = [None, torch.randn(3, 5)]
    nothing, found = unpacked(packed(sent, torch.float16), torch.float16)
    assert nothing is None
    assert found.shape == (3, 5)
    assert unpacked_layout(layout_of(packed(sent, torch.float16))) == layout_of(sent)


def test_a_message_is_as_small_as_it_says() -> None:
    """Through a transport that notes what it is given."""
    way, value = route(0, Direction.ACTIVATION), torch.randn(16, 16)
    inner = Loopback()
    for asked, size in (("bf16", 512), ("fp16", 520), ("fp8", 264), (None, 1024)):
        made = Compression(asked, None)  # type: ignore[arg-type]
        transport = Compressed(inner, [made])
        transport.sender(way, Unknown())([value])
        sent = inner.receiver(way, Unknown())()
        assert sum(one.nbytes for one in sent if isinstance(one, Tensor)) == size
        dtype = made.dtype(Direction.ACTIVATION)
        assert dtype is None or bytes_in((16, 16), torch.float32, dtype) == size
    assert Compression("fp8").dtype(Direction.GRADIENT) is None


def test_over_nccl_a_tensor_is_one_transfer_of_known_size() -> None:
    """Posted before it is there, without a header, as any other."""
    with meshes(2) as (one, _):
        inner, both = nccl(one)
        inner.is_first = False
        transport = Compressed(inner, [Compression("fp8", "fp8")])
        assert isinstance(transport, OrderedTransport)
        transport.sender(route(0, Direction.ACTIVATION), Fixed(layout(6)))([torch.ones(6)])
        transport.post(False)
        come = route(1, Direction.ACTIVATION, 1)
        transport.poster(come, Fixed(layout(6)))()
        transport.post(True)
        assert both.wires.launched == [[("send", 1), ("receive", 1)]]
        (value,) = transport.receiver(come, Fixed(layout(6)))()
        assert value.shape == (6,)
        inner.close()


# training


@pytest.mark.parametrize("schedule", SYNCHRONOUS, ids=lambda schedule: schedule.name)
def test_every_synchronous_schedule_is_exact(schedule: Schedule) -> None:
    program = of_schedule(schedule, 2, "")
    assert differences_of("layers", program, compress="fp8") == []


ONE_EACH = {(case.schedule, case.variant): case.program for case in cases(2)}


@pytest.mark.parametrize("program", ONE_EACH.values(), ids=lambda program: program.name)
def test_every_asynchronous_schedule_is_exact(program: Program) -> None:
    for one in (program, recompute(program)):
        made = linear(program.stages)
        assert of_both(made, one, ALWAYS, compress=MIXED) == []


@pytest.mark.parametrize("asked", ["bf16", "fp16", "fp8", MIXED, {(1, 2): "fp8", (0, 1): None}])
def test_every_form_of_asking_is_exact_and_changes_something(asked: Any) -> None:
    program = one_f_one_b(devices=3, microbatches=4)
    assert differences_of("layers", program, compress=asked) == []
    ((batch, target),) = batches(12, 1)
    plain = Reference(linear(3), program, loss=squared).step(batch, target)
    pipeline = Pipeline(linear(3), program, loss=squared, compress=asked)
    assert not torch.equal(pipeline.step(batch, target).loss, plain)


def test_in_half_precision_fewer_bits_are_rounded_and_as_many_are_not() -> None:
    program = one_f_one_b(devices=2, microbatches=4)
    for precision in ("bf16", "fp16", "autocast"):
        assert differences_of("layers", program, precision=precision, compress="fp8") == []
    plain, same = (
        Pipeline(linear(2), program, loss=squared, precision="bf16", compress=asked)
        for asked in (None, "bf16")
    )
    ((batch, target),) = batches(12, 1)
    assert torch.equal(plain.step(batch, target).loss, same.step(batch, target).loss)


def test_what_stays_on_a_device_is_not_rounded() -> None:
    """The second device of a V has the stages on both sides of its turn."""
    program = zbv(devices=2, microbatches=4)
    ((batch, target),) = batches(12, 1)
    asked: list[Any] = [None, {(1, 2): "fp8"}, {(0, 1): "fp8"}]
    plain, turned, crossed = (
        Pipeline(linear(4), program, loss=squared, compress=one).step(batch, target).loss
        for one in asked
    )
    assert torch.equal(turned, plain)
    assert not torch.equal(crossed, plain)


def by_hand(stages: Sequence[nn.Module], batch: Tensor, target: Tensor, count: int) -> Tensor:
    """Plain PyTorch: two stages with casts to bfloat16 between them, in both directions."""
    total = torch.zeros(())
    for x, y in zip(batch.chunk(count), target.chunk(count), strict=True):
        first = stages[0](x)
        second = first.detach().bfloat16().float().requires_grad_()
        loss = squared(stages[1](second), y) / count
        torch.autograd.backward(loss)
        assert second.grad is not None
        torch.autograd.backward(first, second.grad.bfloat16().float())
        total += loss.detach()
    return total


def test_bf16_is_what_casts_by_hand_give() -> None:
    mine, theirs = linear(2), linear(2)
    pipeline = Pipeline(
        mine,
        one_f_one_b(devices=2, microbatches=4),
        loss=squared,
        optimizer=plain_descent,
        compress="bf16",
    )
    optimizer = plain_descent([(n, p) for one in theirs for n, p in one.named_parameters()])
    for batch, target in batches(12, 3):
        loss = pipeline.step(batch, target).loss
        assert torch.equal(loss, by_hand(theirs, batch, target, 4))
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(nn.ModuleList(mine).parameters(), nn.ModuleList(theirs).parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_replicas_are_rounded_as_pipes_are() -> None:
    program = replicated(one_f_one_b(devices=2, microbatches=2), 2)
    assert differences_of("layers", program, compress="fp8", transport="loopback") == []


@pytest.mark.parametrize("name", GRAPHS)
def test_branches_and_frozen_parts_are_exact(name: str) -> None:
    graph = GRAPHS[name]
    for program in programs(graph):
        found = differences(modules(graph), program, batches(11, 2), compress="fp8")
        assert found == []


@pytest.mark.parametrize("name", ["1f1b", "chimera", "zbv"])
def test_named_values_along_several_edges_are_exact(name: str) -> None:
    asked = {(0, 1): "fp8", (0, 3): MIXED, (2, 3): "fp16"}
    assert differences(stages(), program_of(name), masked(23, 2), compress=asked) == []


def test_a_stage_over_the_whole_batch_gets_what_each_microbatch_sent() -> None:
    program = gpipe(devices=2, microbatches=4)
    found = differences(linear(2), program, batches(11, 2), compress="fp8", whole_batch=True)
    assert found == []


def test_predictions_are_rounded_as_steps_are() -> None:
    made = linear(2)
    pipeline = Pipeline(made, gpipe(devices=2, microbatches=2), loss=squared, compress="fp8")
    (batch, _), *_ = batches(8, 1)
    with torch.no_grad():
        halves = [made[1](rounded(made[0](one), torch.float8_e4m3fn)) for one in batch.chunk(2)]
    assert torch.equal(pipeline.predict(batch), torch.cat(halves))


def test_what_is_not_finite_is_found_after_the_edge() -> None:
    """NaN and infinities of a batch reach the loss through all formats."""
    ((batch, target),) = batches(12, 1)
    for asked, bad in itertools.product(("bf16", "fp16", "fp8"), (math.inf, math.nan)):
        broken = batch.clone()
        broken[5, 3] = bad
        pipeline = Pipeline(
            linear(2),
            one_f_one_b(devices=2, microbatches=4),
            loss=squared,
            optimizer=adam,
            compress=asked,  # type: ignore[arg-type]
        )
        with pytest.raises(NonfiniteError):
            pipeline.step(broken, target)


# ranks


def trained(transport: Any) -> dict[str, list[str]]:
    """In each rank: what differs from the reference."""
    exact = partial(differences_of, compress="fp8", transport=transport)
    two_bw = pipedream_2bw(devices=2, microbatches=2, updates=6)
    found = {
        "1f1b": exact("layers", one_f_one_b(devices=2, microbatches=4)),
        "two pipes": exact("layers", chimera(devices=2, microbatches=4)),
        "shapes of the data": exact("ragged", one_f_one_b(devices=2, microbatches=4)),
        "integers": exact("reminded", one_f_one_b(devices=2, microbatches=4), compress=MIXED),
        "no gradient": exact("forked", gpipe(devices=2, microbatches=4)),
        "names": differences(
            stages(), program_of("zbv"), masked(23, 2), compress="fp16", transport=transport
        ),
        "asynchronous": of_both(linear(2), two_bw, ALWAYS, compress="fp8", transport=transport),
    }
    return {name: differs for name, differs in found.items() if differs}


def refused() -> str:
    """In each rank: what is said where ranks compress differently."""
    asked: Any = "fp8" if torch.distributed.get_rank() else {(0, 1): MIXED}
    try:
        Pipeline(linear(2), gpipe(devices=2, microbatches=2), loss=squared, compress=asked)
    except Disagreement as error:
        return str(error)
    return "nothing"


def in_ranks(transport: Any) -> tuple[str, dict[str, list[str]]]:
    return refused(), trained(transport)


def test_ranks_are_exact_over_both_transports_or_refused() -> None:
    said = "compressed edges or reduce= of ranks [1] differ from those of rank 0"
    assert over_transports(2, in_ranks) == [[(said, {})] * 2] * 2


# asking


def test_what_cannot_be_asked_for_is_refused() -> None:
    program = gpipe(devices=2, microbatches=2)
    wrong: dict[str, Any] = {
        r"compress is one of bf16, fp16, fp8, .* not 'int8'": "int8",
        r"compress names an edge \(1, 2\), .*; there are \(0, 1\)": {(1, 2): "fp8"},
        r"compress names an edge 0, which the model does not have": {0: "fp8"},
    }
    for said, asked in wrong.items():
        for make in (Pipeline, Reference):
            with pytest.raises(InputError, match=said):
                make(linear(2), program, loss=squared, compress=asked)
    with pytest.raises(InputError, match="a method has no devices to compress between"):
        Reference(linear(2), Method(synchronous(), 2), loss=squared, compress="fp8")


def test_a_cost_counts_the_bytes_that_travel() -> None:
    program = gpipe(devices=2, microbatches=2)
    batch = Value.of(torch.zeros(3, WIDTH), "")
    values = StageValues.through(linear(2), program.graph, batch, {})
    sizes = {
        asked: values.messages(program.graph, {}, asked)
        for asked in (None, "bf16", "fp16", "fp8", MIXED)
    }
    assert sizes == {None: (96,), "bf16": (48,), "fp16": (56,), "fp8": (32,), MIXED: (40,)}
