"""Numbers without measure: every whole number of every command has a bound, and says so."""

from __future__ import annotations

import click
import pytest

from tests.cli.running import refused, weft
from weft.cli import COMMANDS, main
from weft.errors import InputError
from weft.lower import experts
from weft.lower.experts import MOST_LAYERS
from weft.request.values import MOST_COUNT
from weft.schedules import one_f_one_b

HUGE = "9" * 60


def whole_numbers() -> list[tuple[str, str]]:
    """The options of all commands that take one."""
    context = click.Context(main)
    found = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found += [
            (name, option.opts[-1])
            for option in command.params
            if isinstance(option.type, click.types.IntParamType)
        ]
    return found


def test_there_are_such_options() -> None:
    assert {("simulate", "--experts"), ("train", "--hidden"), ("serve", "--port")} <= {
        *whole_numbers()
    }


@pytest.mark.parametrize(("command", "option"), whole_numbers())
def test_none_takes_any_number(command: str, option: str) -> None:
    names = {"train": [], "profile": [], "serve": [], "compare": ["1f1b"]}.get(command, ["1f1b"])
    result = weft(command, *names, option, HUGE)
    refused(result, option)
    assert HUGE not in result.stderr or command == "serve"


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (
            f"simulate kimi-k2 --experts {MOST_LAYERS + 1}",
            f"1025 is not a whole number from 1 to {MOST_LAYERS:,}",
        ),
        ("simulate kimi-k2 -d 16 -n 64 --experts 1024", "--experts 1024 makes"),
        ("simulate 1f1b --steps 1000000", "--steps 1000000 makes 64,000,000 actions or more"),
        (f"simulate 1f1b -n {MOST_COUNT + 1}", f"is not a whole number from 1 to {MOST_COUNT:,}"),
        ("draw 1f1b --width 100000", "is not a whole number from 20 to 10,000"),
        ("train -d 257 --reference", "257 processes; a job has at most 256"),
        ("train --hidden 1000000 --reference", "weights; a job has at most"),
        ("train --layers 100000000 --reference", "weights; a job has at most"),
        ("train --context 1000000 --reference", "numbers in one tensor of a microbatch"),
        ("train --microbatch-size 1000000000 --reference", "numbers in one tensor"),
    ],
)
def test_what_would_take_too_much_memory_is_refused_before_it_does(
    words: str, fragment: str
) -> None:
    refused(weft(*words.split()), fragment)


def test_a_stage_is_cut_into_as_many_layers_as_can_differ() -> None:
    with pytest.raises(InputError, match=f"at most {MOST_LAYERS}"):
        experts(one_f_one_b(devices=2, microbatches=2), layers=MOST_LAYERS + 1)
