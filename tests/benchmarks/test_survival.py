"""The campaign of survival in short: real ranks are struck, and all others say why and end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen
from types import ModuleType
from typing import Any

import pytest

SURVIVAL = Path(__file__).parents[2] / "benchmarks" / "survival"
CASES = 20
DEADLINE, GRACE = 6.0, 50.0  # seconds; a hang is one on a busy machine, too


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SURVIVAL)
        yield


@pytest.fixture(scope="module")
def campaign() -> ModuleType:
    return import_module("campaign")


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    return import_module("verdicts")


def drawn(campaign: ModuleType, transports: tuple[str, ...]) -> list[Any]:
    """Cases of two ranks, as long as they are few."""
    asked = transports, [*campaign.MOMENTS], DEADLINE
    every = (campaign.case_of(0, number, *asked) for number in range(10 * CASES))
    return [case for case in every if case.ranks == 2][:CASES]


def test_whatever_happens_to_a_rank_the_others_say_why_and_leave_nothing(
    campaign: ModuleType,
) -> None:
    is_private = campaign.hosts.are_allowed()
    transports = campaign.TRANSPORTS if is_private else ("shared", "gloo")
    cases = drawn(campaign, transports)
    found = [*campaign.outcomes(cases, "brief", jobs=4, is_private=is_private, grace=GRACE)]
    assert len(found) == CASES
    assert [campaign.line(one) for one in found if not one.is_good] == []
    assert {one.case.transport for one in found} == {*transports}


# how it judges

SAID = {
    "kill": "device 1 died; device 0 was waiting for 1B0 of device 1",
    "end": "device 1 has left; device 0 was waiting for 1B0 of device 1",
    "raise": "device 1 failed at 1F2: struck on purpose; device 0 was waiting for 1B0 of device 1",
    "exit": "device 1 failed: SystemExit: 3; device 0 was waiting for 1B0 of device 1",
    "stop": "nothing came within the deadline of 4 s; device 0 was waiting for 1B0 of device 1",
}
ERROR = "weft.errors.RankError: "


def judged(
    verdicts: ModuleType, kind: str, said: str, *, left: tuple[str, ...] = (), end: float = 0.2
) -> Any:
    """A case whose rank 1 was struck in a step, when rank 0 has ended so."""
    case = verdicts.Case(0, 0, kind, "steps", "user", 0, 1, "1f1b", 2, "shared", DEADLINE)
    ranks = [verdicts.Rank(0.1, end, 1, said), verdicts.Rank(None, 0.1, 1, "")]
    return verdicts.Outcome(case, "a forward", ranks, DEADLINE + 5, left)


@pytest.mark.parametrize("kind", SAID)
def test_an_end_in_time_with_the_cause_and_nothing_left_is_good(
    kind: str, verdicts: ModuleType
) -> None:
    assert judged(verdicts, kind, ERROR + SAID[kind]).is_good
    assert not judged(verdicts, kind, ERROR + SAID[kind], left=("file tmp/x",)).is_good
    assert not judged(verdicts, kind, ERROR + SAID[kind], end=DEADLINE + 5.1).is_good


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("said", ["", f"{ERROR}device 0 died", "RuntimeError: Connection reset"])
def test_other_last_words_are_not_the_cause(kind: str, said: str, verdicts: ModuleType) -> None:
    assert not judged(verdicts, kind, said).is_named


def test_what_a_rank_leaves_is_found(tmp_path: Path) -> None:
    leftovers = import_module("leftovers")
    for name in leftovers.PRIVATE:
        (tmp_path / name).mkdir()
    assert leftovers.left(tmp_path, [], []) == []
    (tmp_path / "shm" / "torch_1").touch()
    assert leftovers.left(tmp_path, [], []) == ["file shm/torch_1"]
    session = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[3]
    assert any(one.startswith("process ") for one in leftovers.left(tmp_path, [int(session)], []))


LISTEN = "import socket, sys; one = socket.socket({}); one.bind({}); one.listen(); print()"


@pytest.mark.parametrize(
    "where", [("socket.AF_UNIX", r"'\0weft'"), ("socket.AF_INET", "('127.0.0.1', 0)")]
)
def test_a_socket_that_a_process_holds_is_found(where: tuple[str, str]) -> None:
    hosts = import_module("hosts")
    if not hosts.are_allowed():
        pytest.skip("this needs network namespaces")
    with hosts.made(1) as (name,):
        assert hosts.sockets(name) == []
        code = LISTEN.format(*where) + "; sys.stdin.read()"
        command = ["ip", "netns", "exec", name, sys.executable, "-uS", "-c", code]
        with Popen(command, stdin=PIPE, stdout=PIPE) as listening:
            assert listening.stdout is not None
            listening.stdout.readline()
            assert len(hosts.sockets(name)) == 1
            listening.communicate()
        assert hosts.sockets(name) == []
