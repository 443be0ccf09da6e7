"""`weft synthesize`: figures, quality, files, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from tests.runtime.exactness import differences_of
from weft.notation import read_program, to_json
from weft.plan.synthesis import Effort, Problem, Synthesis, synthesize
from weft.simulate import simulate


def test_json_has_what_simulate_has_and_how_good_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    found = weft_json(*["synthesize", "-d", "4", "-n", "8", "--cap", "3", "-o"], str(path))
    quality = {name: found.pop(name) for name in ("bound", "is_optimal", "method", "times_off")}
    assert found == weft_json("simulate", str(path))
    assert (found["name"], found["makespan"]) == ("synthesised-4x8-cap3", 31)
    assert found["peak_activations"] == [3, 3, 3, 3]
    assert (quality["bound"], quality["is_optimal"]) == (31, True)
    assert 31 < quality["times_off"]["mean"] <= quality["times_off"]["longest"]


@pytest.mark.parametrize(
    ("words", "makespan"),
    [
        ("-d 4 -n 8 --cap 2 -k 2 --placement v", 29.5),
        ("-d 4 -n 8 --cap 6 --forward 10 --input-grad 11 --weight-grad 8 --latency 1", 265),
        ("-d 4 -n 8 --cap 4,4,4,4 --time 60", 27),
    ],
)
def test_costs_and_caps_are_those_of_a_whole_device(words: str, makespan: float) -> None:
    found = weft_json("synthesize", *words.split())
    assert (found["makespan"], found["is_optimal"]) == (makespan, True)


def test_costs_come_from_a_file(tmp_path: Path) -> None:
    program = tmp_path / "mine.json"
    weft("synthesize", "-d", "3", "-n", "4", "--cap", "2", "-o", str(program))
    cost = simulate(read_program(program)).cost
    (tmp_path / "cost.json").write_text(to_json(cost))
    words = ["-d", "3", "-n", "4", "--cap", "2", "--cost", str(tmp_path / "cost.json")]
    assert weft_json("synthesize", *words)["makespan"] == simulate(read_program(program)).makespan


@pytest.mark.parametrize(("name", "words"), [("loop", []), ("v", ["--placement", "v"])])
def test_the_program_is_drawn_exported_and_trained_bit_for_bit(
    name: str, words: list[str], tmp_path: Path
) -> None:
    path, table = tmp_path / "mine.txt", tmp_path / "mine.csv"
    made = weft("synthesize", *["-d", "2", "-n", "4", "--cap", "1.5", "-o"], str(path), *words)
    assert made.exit_code == 0
    program = read_program(path)
    assert weft("draw", str(path)).exit_code == weft("verify", str(path)).exit_code == 0
    exported = weft("export", str(path), "--format", "torch-csv", "-o", str(table))
    assert exported.exit_code == 0, exported.stderr
    assert read_program(table).renamed(program.name) == program
    assert differences_of("layers", program) == []


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(
        problem: Problem, effort: Effort, watch: Callable[[Synthesis], None]
    ) -> Synthesis:
        watch(synthesize(problem, Effort(exact=0, moves=0)))
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.synthesize.synthesize", interrupted)
    result = weft(*["synthesize", "-d", "4", "-n", "8", "--cap", "2", "--json"])
    assert result.exit_code == 0
    assert '"makespan": 41.0' in result.stdout
    assert result.stderr == "weft: interrupted; this is the best so far\n"


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("-d 4 -n 8", "--cap is needed"),
        ("-d 4 -n 8 --cap 0.5", "a cap of 0.5 on device 0 is below the smallest possible, 1"),
        ("-d 4 -n 8 --cap 4,4", "caps has 2 numbers, and there are 4 devices"),
        ("-d 4 -n 8 --cap many", "is not a list of at most"),
        ("-d 4 -n 8 --cap 4 -k 3 --placement v", "two stages on a device, not 3"),
        ("-d 1000 -n 100000 --cap 4", "synthesis takes 1,000,000"),
        ("-d 4 -n 8 --cap 4 --pair 2", "leave out --pair"),
        ("-d 4 -n 8 --cap 4 --cost nowhere.json", "nowhere.json"),
        ("-d 4 -n 8 --cap 4 -o nowhere/mine.txt", "there is no folder"),
        ("-d 4 -n 8 --cap 4 --forward 0 --input-grad 0 --weight-grad 0", "takes any time"),
    ],
)
def test_nonsense_is_refused(words: str, fragment: str) -> None:
    refused(weft("synthesize", *words.split()), fragment)
