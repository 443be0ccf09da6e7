"""Compared slots: the same actions of both timelines, on one time scale."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.cli.running import refused, weft
from weft.cost import Link, Share
from weft.draw.compared import Compared
from weft.draw.look import LIGHT
from weft.draw.slots import slots_of
from weft.draw.svg.compared import compared_to_svg
from weft.draw.terminal_compared import compared_coloured, compared_plain
from weft.errors import InputError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.lower import executable, experts, offload, updates
from weft.notation import to_json
from weft.schedules import REGISTRY, gpipe, kimi_k2, one_f_one_b
from weft.simulate import simulate
from weft.timeline import Timeline

SLOWER = 1.5


@pytest.fixture(scope="module")
def compared() -> Compared:
    """A run in which everything took half as long again as predicted."""
    program = experts(kimi_k2(devices=2, microbatches=4, stages_per_device=2))
    cost = Share(weight_grad=0.5, latency=0.1).cost(program)
    cost = replace(cost, network=replace(cost.network, host=Link(bandwidth=2.0)))
    predicted = simulate(executable(offload(simulate(program, cost), amount="all")), cost)
    return Compared(predicted, _slower(predicted), device=1)


def _slower(timeline: Timeline) -> Timeline:
    start, end = 7 + SLOWER * timeline.start, 7 + SLOWER * timeline.end
    return Timeline(timeline.program, timeline.cost, start, end, is_measured=True)


def kinds(program: Program, device: int) -> dict[str, str]:
    """What is computed in the slot of each phase."""
    actions = program.actions
    return {
        slot.phase: "".join(
            dict.fromkeys(Kind(int(kind)).name for kind in actions.kind[slot.first : slot.stop])
        )
        for slot in slots_of(program, device)
    }


def test_slots_of_the_phases() -> None:
    program = kimi_k2(devices=4, microbatches=8, stages_per_device=2)
    wanted = {"warm-up": "F", "steady": "FIW", "cool-down": "IW"}
    assert kinds(program, 1) == kinds(experts(program), 1) == wanted
    whole = {"warm-up": "F", "steady": "FB", "cool-down": "B"}
    assert kinds(one_f_one_b(devices=4, microbatches=8), 1) == whole
    assert kinds(one_f_one_b(devices=4, microbatches=8), 3) == {"steady": "FB"}
    assert kinds(gpipe(devices=2, microbatches=4), 0) == {"warm-up": "F", "cool-down": "B"}


@pytest.mark.parametrize("name", [one.name for one in REGISTRY if not one.is_asynchronous])
def test_slots_follow_each_other(name: str) -> None:
    program = REGISTRY[name](devices=4, microbatches=8)
    for device in range(4):
        slots = slots_of(program, device)
        assert slots
        assert all(one.first < one.stop for one in slots)
        assert all(one.stop <= other.first for one, other in pairwise(slots))


def test_both_have_one_time_scale(compared: Compared) -> None:
    text = compared_to_svg(compared)
    (idle,) = re.findall(rf'<g fill="{LIGHT.idle.code}">(.*?)</g>', text, re.DOTALL)
    widths = np.array([float(width) for width in re.findall(r'width="([\d.]+)"', idle)])
    first, second = widths.reshape(3, 2, 3).transpose(1, 0, 2)  # by slot, timeline and row
    assert second == pytest.approx(SLOWER * first, rel=1e-3)


def test_rows_lengths_and_legend_are_named(compared: Compared) -> None:
    text = compared_to_svg(compared)
    measured = [slot.window(compared.measured) for slot in compared.slots]
    for words in ("Computation", "Communication", "Offload", "dispatch to experts", "load back"):
        assert f">{words}<" in text
    for phase, window in zip(("warm-up", "steady", "cool-down"), measured, strict=True):
        assert f">{phase}<" in text
        assert f">measured: {compared.unit.amount(window.length)}<" in text


def test_letters_stand_in_the_same_rows(compared: Compared) -> None:
    lines = compared_plain(compared, width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert len([line for line in lines if "Computation" in line]) == 6
    steady = lines[next(i for i, line in enumerate(lines) if line.startswith("steady")) + 1 :]
    shown = [line[24:].rstrip("|") for line in steady[:6]]
    assert [len(line) for line in shown[3:]] == pytest.approx(
        [SLOWER * len(line) for line in shown[:3]], abs=1.5
    )
    assert re.findall("[A-Za-z]", shown[0]) == re.findall("[A-Za-z]", shown[3])
    coloured = compared_coloured(compared, width=100).plain
    assert "measured  Computation" in coloured


def test_the_legend_has_what_any_of_the_slots_shows() -> None:
    """Device 1 updates within its slot of the cool-down, device 0 after it."""
    program = executable(updates(one_f_one_b(devices=4, microbatches=8)))
    predicted = simulate(program, Share().cost(program))
    for device, is_listed in ((0, False), (1, True)):
        both = Compared(predicted, _slower(predicted), device=device)
        assert ("U update" in compared_plain(both, width=100)) is is_listed
        assert (">update<" in compared_to_svg(both)) is is_listed


def test_two_programs_are_refused(compared: Compared) -> None:
    other = _slower(simulate(one_f_one_b(devices=2, microbatches=4)))
    with pytest.raises(InputError, match="are two programs: kimi-k2 and 1f1b"):
        Compared(compared.predicted, other, device=0)
    with pytest.raises(InputError, match="there is no device 2; they are numbered 0 to 1"):
        replace(compared, device=2)


def test_the_command_draws_a_run(compared: Compared, tmp_path: Path) -> None:
    for name, timeline in compared.timelines.items():
        (tmp_path / f"{name}.json").write_text(to_json(timeline))
    words = ("draw", "kimi-k2", "--streams", "--measured", str(tmp_path))
    assert weft(*words, "--width", "100").stdout == compared_plain(compared, width=100) + "\n"
    picture = tmp_path / "slots.svg"
    assert weft(*words, "--phases", "1", "-o", str(picture)).exit_code == 0
    assert picture.read_text() == compared_to_svg(compared)
    refused(weft(*words, "--phases", "7"), "there is no device 7; they are numbered 0 to 1")
    refused(weft("draw", "1f1b", *words[2:]), "is a run of kimi-k2, not of 1f1b: draw kimi-k2")
    refused(weft(*words, "-d", "4"), "leave out --devices")
    refused(weft(*words, "--forward", "2"), "leave out the costs")
    refused(weft(*words, "--only", "1"), "leave out --only")
    refused(weft(*words, "--lowered"), "leave out --lowered and --text")
    refused(weft(*words[:-1], str(tmp_path / "none")), "name the folder of a run of `weft train`")
