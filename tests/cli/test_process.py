"""The command as a process: cold starts, pipes, signals, and its help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from shlex import split

import pytest

from tests.cli.running import process, weft
from weft.cli import COMMANDS


def imported(*words: str) -> set[str]:
    """The packages that a command line imports."""
    command = [sys.executable, "-X", "importtime", "-m", "weft", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split("|")[-1].strip().split(".")[0] for line in run.stderr.splitlines()}


def test_help_imports_little() -> None:
    assert not imported("--help") & {"numpy", "rich", "torch", "tensorboard"}


def test_drawing_imports_no_torch() -> None:
    assert "torch" not in imported("draw", "1f1b")


@pytest.mark.parametrize(
    ("words", "status"), [("draw 1f1b", 0), ("draw chimera -d 3", 2), ("draw nothing", 2)]
)
def test_statuses(words: str, status: int) -> None:
    run = process(*words.split())
    assert run.returncode == status
    assert "Traceback" not in run.stderr


def test_a_reader_that_stops_is_no_error() -> None:
    command = f"{sys.executable} -m weft list | true; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.strip() in ("0", "141")


def test_a_full_disk_is_reported() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "weft", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (run.returncode, run.stderr) == (2, "weft: No space left on device\n")


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.request.Request.timed", interrupted)
    result = weft("simulate", "1f1b")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_ascii_output_still_works() -> None:
    run = process("draw", "1f1b", "--color", env={"PYTHONIOENCODING": "ascii", "TERM": "xterm"})
    assert run.returncode == 0


@pytest.mark.parametrize("words", ["explain 1f1b", "compare -d 4 -n 8", "list", "simulate zbv"])
def test_a_narrow_screen_cuts_nothing(words: str) -> None:
    narrow = weft(*words.split(), FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS="60").stdout
    wide = weft(*words.split()).stdout
    assert "…" not in narrow
    assert len(narrow.splitlines()) > len(wide.splitlines())


def test_a_dumb_terminal_has_a_width_too() -> None:
    message = weft("list", FORCE_COLOR="1", TERM="dumb", COLUMNS="60").stdout
    assert max(map(len, message.splitlines())) <= 60


# help


def test_help_alone_and_version() -> None:
    assert weft().stdout == weft("--help").stdout
    assert weft("--version").stdout.startswith("weft ")


def examples(command: str) -> list[list[str]]:
    """The examples of a command's help, each with the lines that it is said to print."""
    lines = [line.strip() for line in weft(command, "--help").stdout.splitlines()]
    begins = [index for index, line in enumerate(lines) if line.startswith("$ weft ")]
    return [[lines[begin], *_printed(lines[begin + 1 :])] for begin in begins]


def _printed(lines: list[str]) -> Iterator[str]:
    return takewhile(lambda line: line and not line.startswith("$"), lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_an_example_and_its_output(command: str) -> None:
    assert any(len(example) > 1 for example in examples(command))


# Examples that take minutes, or until Ctrl-C, or a Tab key.
LASTING = ("train", "profile", "serve", "completion")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in LASTING])
def test_examples_in_the_help_print_what_they_show(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    for example, *shown in examples(command):
        words = split(example.partition("   ")[0])[2:]
        result = weft(*words)
        assert result.exit_code in (0, 1), result.stderr
        printed = [line.strip() for line in result.stdout.splitlines()]
        assert [line for line in shown if line not in printed] == []


@pytest.mark.parametrize("command", ["draw", "simulate", "compare", "verify", "export"])
def test_options_stand_under_headings(command: str) -> None:
    message = weft(command, "--help").stdout
    shape, units, machine, own = (
        message.index(f"\n{heading}:\n")
        for heading in (
            "The shape",
            "Costs in units, or from a file",
            "Costs of a model on a device",
            "Options",
        )
    )
    assert (
        shape < message.index("--devices D") < units < message.index("--latency SECONDS") < machine
    )
    assert machine < message.index("--model NAME|FILE") < message.index("--state-bytes W") < own


@pytest.mark.parametrize("command", ["train", "profile"])
def test_the_options_of_a_job_stand_under_headings_too(command: str) -> None:
    message = weft(command, "--help").stdout
    order = [
        "The program:",
        "--devices D",
        "The training:",
        "--steps N",
        "The model:",
        "--layers N",
    ]
    order += ["The data:", "--vocabulary V", "Options:", "--config FILE.toml"]
    places = [message.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("weft draw zb", ["zb-h1", "zb-h2", "zbv"]),
        ("weft draw 1f1b --model gpt-1", ["gpt-1.5b", "gpt-14.6b", "gpt-145.6b", "gpt-1008b"]),
        ("weft draw 1f1b --device h", ["h100", "h200", "h800"]),
        ("weft draw gpipe --variant r", ["recompute", "recompute-early"]),
        ("weft train --schedule zb", ["zb-h1", "zb-h2", "zbv"]),
        ("weft list mod", ["models"]),
        ("weft ex", ["explain", "export"]),
        ("weft list devices a", ["a100"]),
    ],
)
def test_names_complete_in_the_shell(words: str, names: list[str]) -> None:
    last = str(len(words.split()) - 1)
    completed = process(
        env={"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    )
    assert completed.stdout.split() == [f"plain,{name}" for name in names]


def test_a_name_that_is_no_schedule_completes_as_a_file() -> None:
    completed = process(
        env={"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": "weft draw mine.", "COMP_CWORD": "2"}
    )
    assert completed.stdout.split() == ["file,mine."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_asks_weft(shell: str) -> None:
    message = weft("completion", shell).stdout
    assert f"_WEFT_COMPLETE={shell}_complete" in message
    assert "weft" in message


def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "weft"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m weft "$@"\n')
    program.chmod(0o755)
    ask = (
        "source <(weft completion bash); COMP_WORDS=(weft draw zb) COMP_CWORD=2;"
        ' _weft_completion weft; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-c", ask],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["zb-h1", "zb-h2", "zbv"]
