"""Compositions of habits train as plain torch does, or are refused; never anything else."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.runtime.habits.case import Case
from tests.runtime.habits.draws import cases, drawn
from tests.runtime.habits.judge import judge
from tests.runtime.habits.minimal import reduced
from tests.runtime.habits.ranks import judge_in_ranks
from tests.runtime.ranks import TRANSPORTS

MOST_REFUSED = 0.12  # of those drawn, which depend a little on what modules hypothesis has seen
MOST_VOID = 0.15
EXAMPLES = 80


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about hooks and views
        yield


def test_compositions_are_right_or_refused() -> None:
    """Equal to plain torch within rounding and to the reference to the bit; few are refused."""
    kinds = Counter[str]()

    @seed(0)
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],  # what fails is made smaller by `reduced`
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def look(case: Case) -> None:
        verdict = judge(case)
        kinds[verdict.kind] += 1
        assert verdict.kind != "wrong", smallest(case)

    look()
    trained = EXAMPLES - kinds["void"]
    assert kinds["refused"] <= MOST_REFUSED * trained, kinds
    assert kinds["void"] <= MOST_VOID * EXAMPLES, kinds


def smallest(case: Case) -> str:
    """The smallest case that fails as this one does, and how."""
    found = reduced(case, lambda one: judge(one).kind == "wrong")
    return f"{found!r}\n{judge(found)}\nfirst seen as {case!r}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_sample_in_real_processes(transport: str) -> None:
    every = [case for case in map(drawn, range(60)) if case.plan.program.devices == 2]
    sample = every[TRANSPORTS.index(transport) : 14 : 2]
    verdicts = judge_in_ranks(sample, transport)
    found = zip(sample, verdicts, strict=True)
    wrong = [f"{case!r}\n{verdict}" for case, verdict in found if verdict.kind == "wrong"]
    assert not wrong, "\n".join(wrong)
    assert sum(verdict.kind == "equal" for verdict in verdicts) > len(sample) / 2
