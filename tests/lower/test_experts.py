"""The experts pass: pairs become the five columns of Kimi K2's figure."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.cost import Share
from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Kind, Part, Stream
from weft.ir.lanes import Lane
from weft.lower import experts, wires
from weft.schedules import dualpipe, dualpipev, kimi_k2, one_f_one_b, pipedream
from weft.simulate import simulate
from weft.verify import verify

K2 = kimi_k2(devices=4, microbatches=8, stages_per_device=2)


def _words(actions: Actions) -> list[str]:
    """A0f: the attention of microbatch 0 forward; W0: its weight gradient."""
    return [_word(action) for action in actions]


def _word(action: Action) -> str:
    if action.segment is None:
        return f"{action.kind.name}{action.microbatch}"
    letter = Part(action.segment % len(Part)).name[0]
    return f"{letter}{action.microbatch}{'f' if action.kind is Kind.F else 'b'}"


def test_the_five_columns() -> None:
    lanes = experts(K2).contents()
    compute, streams = (
        _words(lanes[Lane(3, stream)]) for stream in (Stream.COMPUTE, Stream.EXPERTS)
    )
    # device 3: five forwards, then F1' with I0', W0'.
    assert compute[:4] == ["A0f", "E0f", "A1f", "E1f"]
    assert compute[10:15] == ["A1f", "E0b", "E1f", "A0b", "W0"]
    assert streams[10:14] == ["C0b", "D1f", "D0b", "C1f"]
    assert compute[-3:] == ["E7b", "A7b", "W7"]
    assert streams[-2:] == ["C7b", "D7b"]


def test_a_slot_takes_no_longer_than_its_computation() -> None:
    """F = I = 1.5 with a third of it communication, W = 1: 3 a slot, as the pair says."""
    program = experts(K2)
    timeline = simulate(program, Share(3, 3, 2, pair=6).cost(program))
    middle = [
        float(timeline.start[index])
        for index, action in enumerate(program.actions)
        if action.kind is Kind.W and action.stage == 7
    ]
    assert {round(b - a, 9) for a, b in pairwise(middle[:4])} == {3.0}


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize(
    "program",
    [
        K2,
        kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant="paired-ends"),
        kimi_k2(devices=4, microbatches=8, stages_per_device=2, variant="send-after-w"),
        dualpipe(devices=4, microbatches=8),
        dualpipev(devices=4, microbatches=8),
        one_f_one_b(devices=4, microbatches=8),
    ],
    ids=lambda program: getattr(program, "name", str(program)),
)
def test_every_overlapped_schedule_goes_through(program: object, layers: int) -> None:
    assert hasattr(program, "graph")
    cut = wires(experts(program, layers=layers))  # type: ignore[arg-type]
    assert verify(cut).is_valid
    whole = simulate(program)  # type: ignore[arg-type]
    assert simulate(cut).device_work.sum() <= whole.device_work.sum()
    assert max(simulate(cut).peak_activations) <= max(whole.peak_activations) + 1


def test_work_is_split_not_lost() -> None:
    """Without communication the parts add up to the whole."""
    program = one_f_one_b(devices=2, microbatches=4)
    share = Share(pair=3.0)
    cut = experts(program, layers=3)
    assert simulate(cut, share.cost(cut)).makespan == pytest.approx(
        simulate(program, share.cost(program)).makespan
    )


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 layer"):
        experts(K2, layers=0)
    with pytest.raises(InputError, match="whole stages"):
        experts(experts(K2))
    with pytest.raises(InputError, match="written out"):
        experts(pipedream(devices=2, microbatches=8))
