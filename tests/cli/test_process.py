"""The command as a process: cold starts, pipes, signals, and its help."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_full_disk_is_told() -> None:
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

    monkeypatch.setattr("weft.cli.simulate.timed", interrupted)
    result = weft("simulate", "1f1b")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_ascii_output_still_works() -> None:
    run = process("draw", "1f1b", "--color", env={"PYTHONIOENCODING": "ascii", "TERM": "xterm"})
    assert run.returncode == 0


# help


def test_help_alone_and_version() -> None:
    assert weft().stdout == weft("--help").stdout
    assert weft("--version").stdout.startswith("weft ")


LASTING = ("train", "profile", "serve")  # their examples take minutes, or until Ctrl-C


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in LASTING])
def test_examples_in_the_help_print_what_they_show(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write a file
    lines = [line.strip() for line in weft(command, "--help").stdout.splitlines()]
    examples = [index for index, line in enumerate(lines) if line.startswith("$ weft ")]
    assert examples
    for index in examples:
        words = split(lines[index].partition("   ")[0])[2:]
        if "program.txt" not in words:
            printed = [line.strip() for line in weft(*words).stdout.splitlines()]
            for line in lines[index + 1 :]:
                if not line or line.startswith("$"):
                    break
                assert line in printed


@pytest.mark.parametrize("command", ["draw", "simulate", "compare", "verify"])
def test_options_stand_under_headings(command: str) -> None:
    told = weft(command, "--help").stdout
    options, units, machine = (
        told.index(heading)
        for heading in (
            "\nOptions:\n",
            "\nCosts in units, or from a file:\n",
            "\nCosts of a model on a device:\n",
        )
    )
    assert options < told.index("--devices") < units < told.index("--lag SECONDS") < machine
    assert machine < told.index("--model NAME|FILE") < told.index("--state-bytes")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("weft draw zb", ["zb-h1", "zb-h2", "zbv"]),
        ("weft draw 1f1b --model gpt-1", ["gpt-1.5b", "gpt-14.6b", "gpt-145.6b", "gpt-1008b"]),
        ("weft draw 1f1b --device h", ["h100", "h200", "h800"]),
        ("weft list mod", ["models"]),
        ("weft list devices a", ["a100"]),
    ],
)
def test_names_complete_in_the_shell(words: str, names: list[str]) -> None:
    last = str(len(words.split()) - 1)
    completed = process(
        env={"_WEFT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    )
    assert completed.stdout.split() == [f"plain,{name}" for name in names]
