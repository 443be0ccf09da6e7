"""Published figures that nobody here computed.

Zero Bubble (arXiv 2401.10241), Table 6 gives times in ms, Table 5 the bubble rates: those of
1F1B and ZB-H1 are WALL bubbles, those of ZB-H2 SPAN bubbles.
"""

from __future__ import annotations

import pytest

from weft.cost import Share
from weft.schedules import REGISTRY
from weft.simulate import simulate

ZERO_BUBBLE = [
    # devices, microbatches, F, I, W, latency, 1F1B, ZB-H1, ZB-H2
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0266),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594, 0.0257),
]


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=lambda row: f"{row[0]}x{row[1]}-{row[2]}")
def test_zero_bubble_rates_to_four_digits(row: tuple[float, ...]) -> None:
    devices, microbatches = int(row[0]), int(row[1])
    share = Share(forward=row[2], input_grad=row[3], weight_grad=row[4], latency=row[5])
    expected = dict(zip(("1f1b", "zb-h1", "zb-h2"), row[6:], strict=True))
    for name, rate in expected.items():
        program = REGISTRY[name](devices=devices, microbatches=microbatches)
        bubble = simulate(program, share.cost(program)).bubble
        found = bubble.span if name == "zb-h2" else bubble.wall
        assert round(found, 4) == rate, name


def test_dualpipe_at_deepseek_v3_size() -> None:
    """F = I = W = 1, F&B = 2.5, 16 devices, 120 microbatches: idle exactly 10.5 (README form)."""
    share = Share(pair=2.5)
    program = REGISTRY["dualpipe"](devices=16, microbatches=120)
    timeline = simulate(program, share.cost(program))
    idle = timeline.makespan - timeline.device_work
    assert idle.max() == pytest.approx((16 / 2 - 1) * (2.5 + 2 - 3))


def test_interleaved_as_in_kimi_k2() -> None:
    """Kimi K2 (arXiv 2507.20534), Fig. 7's 4 x 8 x 2 without its extra warm-up: 57 per stage."""
    program = REGISTRY["interleaved-1f1b"](devices=4, microbatches=8, stages_per_device=2)
    timeline = simulate(program, Share(2, 2, 2).cost(program))
    assert timeline.makespan == 57
    ends = [timeline.end[program.lane_of == device].max() for device in range(4)]
    assert ends == [57, 55, 53, 51]
