"""The experts pass: pairs become the five columns of Kimi K2's figure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from weft.cost import Share
from weft.draw import to_svg
from weft.errors import InputError
from weft.ir.actions import Action, Actions
from weft.ir.kinds import Direction, Kind, Layer, Part, Stream
from weft.ir.lanes import Channel, Lane
from weft.ir.program import Program
from weft.lower import executable, experts, recompute, recompute_early, split, wires
from weft.notation import from_json, from_text, to_json, to_text
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
    with pytest.raises(InputError, match="cut into segments already"):
        experts(experts(K2))
    with pytest.raises(InputError, match=r"repeats.*take a synchronous one"):
        experts(pipedream(devices=2, microbatches=8))


# layers of several kinds

X, DENSE, PLAIN = Layer.EXPERTS, Layer.DENSE, Layer.PLAIN
# The first stage begins with a dense layer, the last ends with a head.
UNEQUAL = [[DENSE], [X, X], [X], [X, X, X], [X], [X, X], [DENSE, X], [X, PLAIN]]


def numbered(actions: Actions) -> list[str]:
    """A0f.1: the attention of layer 1, of microbatch 0 forward."""
    layers = ("" if a.segment is None else f".{a.segment // len(Part)}" for a in actions)
    return [word + layer for word, layer in zip(_words(actions), layers, strict=True)]


def test_what_a_pair_has_more_of_stands_alone() -> None:
    """Forward of stage 3, three layers, with the backward of stage 7: its head, then one layer."""
    lanes = experts(K2, layers=UNEQUAL).contents()
    compute, beside = (
        numbered(lanes[Lane(3, stream)]) for stream in (Stream.COMPUTE, Stream.EXPERTS)
    )
    first = compute.index("A4f.0")
    assert " ".join(compute[first : first + 9]) == (
        "A4f.0 E3b.1 E4f.0 A4f.1 E3b.0 E4f.1 A3b.0 A4f.2 E4f.2"
    )
    first = beside.index("D4f.0")
    assert " ".join(beside[first : first + 8]) == (
        "D4f.0 C4f.0 C3b.0 D4f.1 D3b.0 C4f.1 D4f.2 C4f.2"
    )


def test_a_dense_layer_exchanges_nothing_and_hides_what_others_do() -> None:
    lanes = experts(one_f_one_b(devices=1, microbatches=1), layers=[[DENSE, X]]).contents()
    compute, beside = (
        numbered(lanes[Lane(0, stream)]) for stream in (Stream.COMPUTE, Stream.EXPERTS)
    )
    assert compute == ["A0f.0", "E0f.0", "A0f.1", "E0f.1", "E0b.1", "A0b.1", "E0b.0", "A0b.0"]
    assert beside == ["D0f.1", "C0f.1", "C0b.1", "D0b.1"]


def test_a_program_without_expert_layers_has_no_stream_for_them() -> None:
    program = experts(one_f_one_b(devices=2, microbatches=2), layers=[[DENSE], [PLAIN]])
    assert {lane.stream for lane in program.lanes} == {Stream.COMPUTE}


@pytest.mark.parametrize("variant", ["k2", "paired-ends", "send-after-w"])
def test_layers_of_several_kinds_go_through(variant: str) -> None:
    program = kimi_k2(
        devices=4,
        microbatches=8,
        stages_per_device=2,
        variant=None if variant == "k2" else variant,
    )
    cut = executable(experts(program, layers=UNEQUAL))
    assert verify(cut).is_valid
    assert from_text(to_text(cut)) == cut
    assert from_json(to_json(cut)) == cut
    timeline = simulate(cut)
    assert np.isfinite(timeline.end).all()
    assert "<svg" in to_svg(timeline)
    assert max(timeline.peak_activations) <= max(simulate(program).peak_activations) + 1


@pytest.mark.parametrize("again", [recompute, recompute_early])
def test_a_backward_in_segments_waits_for_its_recomputation(
    again: Callable[[Program], Program],
) -> None:
    for program in (one_f_one_b(devices=2, microbatches=4), K2):
        assert verify(experts(again(program), layers=2)).is_valid


def test_values_from_two_lanes_are_sent_as_they_are_computed() -> None:
    """Stage 0 ends on the compute lane, stage 2 on that of the experts, one channel for both."""
    program = kimi_k2(devices=2, microbatches=4, stages_per_device=2)
    cut = wires(experts(program, layers=[[DENSE], [X], [X], [X]]))
    assert verify(cut).is_valid
    (sends,) = (
        [action.stage for action in actions]
        for lane, actions in cut.contents().items()
        if lane.channel == Channel(0, 1, Direction.ACTIVATION) and lane.device == 0
    )
    assert sends == [0, 0, 2, 2, 0, 0, 2, 2]


def test_what_a_stage_computes_is_shared_by_its_parts() -> None:
    """However it is cut: only what it does not exchange is missing."""
    program = one_f_one_b(devices=1, microbatches=4)
    whole = Share(pair=3.0)  # nothing of it is communication
    for layers in ([X, X], [DENSE, X], [DENSE, X, PLAIN], [PLAIN]):
        cut = experts(program, layers=[layers])
        timeline = simulate(cut, whole.cost(cut))
        assert timeline.makespan == pytest.approx(simulate(program, whole.cost(program)).makespan)


def test_layers_fit_the_stages() -> None:
    with pytest.raises(InputError, match="has 8 stages, and layers are given for 2"):
        experts(K2, layers=[1, 2])
    with pytest.raises(InputError, match="at least 1 layer, at most 1024, not 0"):
        experts(K2, layers=[1] * 7 + [[]])
    assert experts(K2, layers=[2] * 8) == experts(K2, layers=2)


@pytest.mark.parametrize("again", [recompute, recompute_early])
def test_what_is_cut_into_segments_is_recomputed_no_more(
    again: Callable[..., Program],
) -> None:
    cut = experts(one_f_one_b(devices=2, microbatches=4), layers=[[X], [PLAIN]])
    with pytest.raises(InputError, match=r"recompute first, .* experts\(recompute\(program\)\)"):
        again(cut)
    assert verify(again(cut, stages=[1])).is_valid  # which runs in one


def test_what_is_cut_into_segments_is_not_split_in_part() -> None:
    program = dualpipe(devices=2, microbatches=4)  # has B, and I and W besides
    with pytest.raises(InputError, match=r"split first, .* experts\(split\(program\)\)"):
        split(experts(program))
    assert verify(experts(split(program))).is_valid
    assert verify(split(experts(one_f_one_b(devices=2, microbatches=4)))).is_valid
