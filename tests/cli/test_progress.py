"""Progress: nothing for what is quick, a sign of life for what is not."""

from __future__ import annotations

from threading import Event

import pytest

from weft.cli import progress


def test_what_takes_long_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    begun, ended = Event(), Event()
    with progress.if_slow(begun.set, ended.set):
        assert begun.wait(timeout=60)
        assert not ended.is_set()
    assert ended.is_set()


def test_what_is_quick_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 3600.0)
    begun = Event()
    with progress.if_slow(begun.set, lambda: None):
        pass
    assert not begun.is_set()


def test_a_pipe_sees_none_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.working("proving"):
        assert list(progress.with_progress([1, 2, 3])) == [1, 2, 3]
    assert capfd.readouterr() == ("", "")
