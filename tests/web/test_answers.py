"""Answers: whatever a page asks or opens, it gets JSON or a refusal that says why."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.notation.damage import damaged
from weft.errors import WeftError
from weft.ir.graph import Graph
from weft.lower import offload, wires
from weft.notation import to_json, to_text
from weft.request import plan_from_json
from weft.schedules import REGISTRY
from weft.simulate import simulate
from weft.web.answers import ANSWERS

NOTATION = Path(__file__).parents[2] / "docs" / "notation.md"
IN_UNITS = {
    "schedule": "1f1b", "variant": "", "devices": 4, "microbatches": 8, "stages_per_device": 1,
    "updates": 2, "streams": False, "forward": 1, "input_grad": 1, "weight_grad": 1,
    "latency": 0, "bandwidth": 0, "capacity": 0, "lengths": [1, 1, 2, 1],
}  # fmt: skip
OF_A_MODEL = {
    "schedule": "kimi-k2", "devices": 4, "microbatches": 8, "stages_per_device": 2,
    "model": "gpt-6.2b", "device": "a100", "microbatch_size": 1, "expert_parallel": 1,
}  # fmt: skip
QUESTIONS = {
    "/timelines": {"requests": [IN_UNITS, OF_A_MODEL]},
    "/plot": {"request": IN_UNITS},
    "/helps": {"request": OF_A_MODEL},
    "/fit": {"request": {**IN_UNITS, "devices": 2, "microbatches": 4, "capacity": 1.5}},
}


@cache
def files() -> list[str]:
    """Timelines and programs that the page opens."""
    plain = REGISTRY["1f1b"](devices=2, microbatches=2)
    programs = [
        plain,
        wires(REGISTRY["zbv"](devices=2, microbatches=2)),
        REGISTRY["chimera"](devices=2, microbatches=2),
        REGISTRY["gpipe"](devices=6, microbatches=2, graph=Graph.inception()),
        offload(simulate(plain)),
    ]
    return [*(to_json(simulate(program)) for program in programs), *map(to_text, programs)]


def test_a_plan_is_shown_as_it_is_timed() -> None:
    """As the documents write it."""
    plan = re.findall(r"``` json\n(.*?)```", NOTATION.read_text(), re.DOTALL)[0]
    shown = ANSWERS["/open"]({"name": "plan.json", "text": plan})["timelines"]
    assert isinstance(shown, list)
    assert shown[0]["makespan"] == plan_from_json(plan).timeline.makespan


def is_answered(path: str, question: dict[str, object]) -> None:
    with suppress(WeftError):
        assert json.dumps(ANSWERS[path](question), allow_nan=False)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_file_is_shown_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        is_answered("/open", {"name": "file", "text": damaged(chance, chance.choice(files()))})


@pytest.mark.parametrize("path", QUESTIONS)
@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_question_is_answered_or_refused(path: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        question = parsed(damaged(chance, json.dumps(QUESTIONS[path])))
        if isinstance(question, dict):
            is_answered(path, question)


def parsed(text: str) -> object:
    """What a text says, or nothing where it is no JSON; the server refuses that itself."""
    try:
        return json.loads(text)
    except ValueError:
        return None
