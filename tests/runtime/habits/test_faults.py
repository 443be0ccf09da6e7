"""Every fault that the runtime once had is gone, and would be found if it came back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.runtime.habits.faults import FAULTS
from tests.runtime.habits.judge import judge
from tests.runtime.habits.witnesses import WITNESSES


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about hooks and views
        yield


@pytest.mark.parametrize("name", WITNESSES)
def test_witnesses_are_right_or_refused(name: str) -> None:
    verdict = judge(WITNESSES[name])
    assert verdict.kind in ("equal", "refused"), f"{WITNESSES[name]!r}\n{verdict}"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_comes_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    fault.put_back(monkeypatch)
    assert judge(WITNESSES[fault.witness]).kind == "wrong"
