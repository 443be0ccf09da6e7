"""A plan where a program is asked for: its program, costs and passes; nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, weft, weft_json
from tests.request.test_plan import made
from weft.cost import Layout
from weft.notation import from_text
from weft.request import Passes, Plan, plan_to_json


def written(folder: Path, plan: Plan, name: str = "plan.json") -> str:
    path = folder / name
    path.write_text(plan_to_json(plan))
    return str(path)


def test_simulate_has_the_figures_of_the_prediction(tmp_path: Path) -> None:
    plan = made()
    found, known = weft_json("simulate", written(tmp_path, plan)), plan.prediction()
    assert found["makespan"] == known.seconds
    assert found["memory"]["peak"] == [*known.memory]
    assert found["speed"]["mfu"] == known.mfu
    assert found["speed"]["devices"] == 4


def test_draw_explain_and_export_take_a_plan(tmp_path: Path) -> None:
    plan = made()
    file, page = written(tmp_path, plan), tmp_path / "plan.html"
    assert " S " in weft("draw", file, "--lowered", "--width", "400").stdout
    seconds = plan.prediction().seconds
    assert f"A step takes {1e3 * seconds:.4g} ms" in weft("explain", file).stdout
    assert from_text(weft("export", file).stdout) == plan.program
    assert weft("export", file, "--format", "torch-csv", "--lower").exit_code == 0
    assert weft("draw", file, "-o", str(page)).exit_code == 0
    assert "zbv" in page.read_text()


def test_verify_proves_that_a_plan_fits_with_its_passes(tmp_path: Path) -> None:
    """Between what it needs when recomputed, and what it would without."""
    lean, plain = (made(passes=passes) for passes in (Passes(recompute="all"), Passes()))
    needs = [max(plan.prediction().memory) for plan in (lean, plain)]
    limit = ("--memory", str(sum(needs) / 2))
    assert weft("verify", written(tmp_path, lean), *limit).exit_code == 0
    assert weft("verify", written(tmp_path, plain), *limit).exit_code == 1


def test_plans_are_compared_with_plans(tmp_path: Path) -> None:
    one = written(tmp_path, made(), "one.json")
    other = written(tmp_path, made(layout=Layout(layers=(1, 4, 4, 1))), "other.json")
    rows = weft_json("compare", one, other)["rows"]
    assert [row["name"] for row in rows] == [one, other]
    assert rows[0]["time"] < rows[1]["time"]
    refused(weft("compare", one, "1f1b"), "a plan with costs of its own")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-d", "4"), "a program of its own; leave out --devices"),
        (("--recompute", "all"), "passes of its own; leave out --recompute"),
        (("--latency", "1"), "costs of its own; leave out --model"),
    ],
)
def test_what_contradicts_a_plan_is_refused(
    options: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    refused(weft("simulate", written(tmp_path, made()), *options), reason)


def test_a_broken_plan_is_refused_by_its_key(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_to_json(made()).replace('"replicas": 2', '"replicas": 0'))
    refused(weft("simulate", str(file)), "plan.json", "layout: replicas is 0")
