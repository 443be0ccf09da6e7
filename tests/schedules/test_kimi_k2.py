"""Kimi K2's figure to the action, its closed forms, its golden values; per stage, as printed."""

from __future__ import annotations

import pytest

from weft.cost import Share
from weft.ir.kinds import Kind
from weft.lower import experts, wires
from weft.schedules import Shape, interleaved_1f1b, kimi_k2
from weft.simulate import simulate
from weft.verify import verify

# Warm-up, then F and backward in turn, then cool-down; microbatches from 1.
ROWS = """\
1 2 3 4 1 2 3 4 5 6 7 | 8 1 5 2 6 3 7 4 8 1 | 2 3 4 5 6 7 8 5 6 7 8
1 2 3 4 1 2 3 4 5 | 6 1 7 2 8 3 5 4 6 1 7 2 8 3 | 4 5 6 7 8 5 6 7 8
1 2 3 4 1 2 3 | 4 1 5 2 6 3 7 4 8 1 5 2 6 3 7 4 8 5 | 6 7 8 5 6 7 8
1 2 3 4 1 | 2 1 3 2 4 3 5 4 6 1 7 2 8 3 5 4 6 5 7 6 8 7 | 8 5 6 7 8"""

EXPOSED = Share(3, 3, 2, pair=6)  # per stage F = I = 1.5, W = 1, a pair with its W 3


def per_stage(loops: int, *, latency: float = 0.0) -> Share:
    """F = I = W = 1 for each stage."""
    return Share(loops, loops, loops, latency=latency)


def test_the_four_rows_as_printed() -> None:
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2)
    for device, printed in enumerate(ROWS.splitlines()):
        numbers = [
            (action.microbatch or 0) + 1
            for action in program.lane(device)
            if action.kind is not Kind.W
        ]
        assert numbers == [int(word) for word in printed.split() if word != "|"]


@pytest.mark.parametrize(
    ("devices", "loops", "microbatches", "latency", "late", "early"),
    [
        (4, 2, 8, 0, 57, 54),
        (4, 2, 8, 0.5, 69, 59),
        (16, 2, 128, 0.5, 963, 821),
        (16, 4, 128, 1, 2169, 1644),
    ],
)
def test_golden_values(
    devices: int, loops: int, microbatches: int, latency: float, late: float, early: float
) -> None:
    for variant, expected in (("send-after-w", late), ("", early)):
        program = kimi_k2(
            devices=devices, microbatches=microbatches, stages_per_device=loops, variant=variant
        )
        cost = per_stage(loops, latency=latency).cost(program)
        assert simulate(program, cost).makespan == expected


@pytest.mark.parametrize(
    ("shape", "none", "pairs"), [((4, 2, 8), 76, 65), ((16, 4, 128), 2108, 1645)]
)
def test_expert_communication(shape: tuple[int, int, int], none: float, pairs: float) -> None:
    """F 1 -> 1.5 and B 2 -> 2.5 where it shows; a pair stays 3."""
    devices, loops, microbatches = shape
    share = Share(1.5 * loops, 1.25 * loops, 1.25 * loops, pair=3 * loops)
    fields = {"devices": devices, "microbatches": microbatches, "stages_per_device": loops}
    plain = interleaved_1f1b(**fields)
    paired = kimi_k2(variant="send-after-w", **fields)
    assert simulate(plain, share.cost(plain)).makespan == none
    assert simulate(paired, share.cost(paired)).makespan == pairs


def test_peaks_of_live_stages() -> None:
    for variant in ("", "send-after-w"):
        program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant=variant)
        assert simulate(program).peak_activations == [6, 5, 4, 3]


def test_closed_forms_with_latency() -> None:
    for devices in (2, 3, 4, 6, 8):
        for loops in (2, 3, 4):
            for factor in (2, 3, 5):
                for times in ((1, 1, 1), (1, 1.2, 0.8), (10, 11, 8)):
                    for latency in (0, 0.3, 1, 1.5):
                        _check_closed_forms(devices, loops, factor, times, latency * times[2])


def _check_closed_forms(
    devices: int, loops: int, factor: int, times: tuple[float, float, float], latency: float
) -> None:
    forward, input_grad, weight_grad = (seconds * loops for seconds in times)
    share = Share(forward, input_grad, weight_grad, latency=latency)
    for variant in ("", "send-after-w"):
        shape = Shape(
            devices=devices,
            microbatches=factor * devices,
            stages_per_device=loops,
            variant=variant,
        )
        program = kimi_k2.program(shape)
        expected = kimi_k2.claims.seconds(shape, share)
        assert simulate(program, share.cost(program)).makespan == pytest.approx(expected), shape


def test_reuse_distance_falls_with_the_stage() -> None:
    """Of stage s exactly 2 (D K - 1 - s) + 1 slots of the steady state."""
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant="send-after-w")
    where = {
        (action.kind, action.stage, action.microbatch): int(program.slot_of[index])
        for index, action in enumerate(program.actions)
    }
    for stage in range(8):
        distance = {where[Kind.B, stage, m] - where[Kind.F, stage, m] for m in range(8)}
        assert distance == {2 * (7 - stage) + 1}


def test_what_pairing_the_ends_brings() -> None:
    """docs/decisions/paired-ends.md: 61.5 of 62.5, where 61.5 is the best of all pairings."""
    found = {}
    for variant in ("", "paired-ends"):
        program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant=variant)
        assert verify(program).is_valid
        found[variant] = simulate(program, EXPOSED.cost(program)).makespan
    assert found == {"": 62.5, "paired-ends": 61.5}
    share = Share(6, 6, 4, pair=12)
    large = [
        kimi_k2(devices=16, microbatches=128, stages_per_device=4, variant=variant)
        for variant in ("", "paired-ends")
    ]
    assert [simulate(p, share.cost(p)).makespan for p in large] == [1636.5, 1613.5]


def test_no_pairing_of_ends_can_beat_pairs_of_f_and_b() -> None:
    """T >= D K F + (N K - w) P + D K B, which the unpaired order attains."""
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant="send-after-w")
    share = Share(3, 2.5, 2.5, pair=6)
    stages, pairs = 8, 16 - 5
    bound = stages * 1.5 + pairs * 3 + stages * 2.5
    assert simulate(program, share.cost(program)).makespan == bound == 65


@pytest.mark.parametrize("variant", ["", "send-after-w", "paired-ends"])
def test_the_experts_pass_takes_no_longer_than_its_pairs(variant: str) -> None:
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant=variant)
    streams = experts(program)
    cost = EXPOSED.cost(program)
    assert verify(wires(streams)).is_valid
    assert simulate(streams, cost).makespan <= simulate(program, cost).makespan
