"""A mixture of experts in training runs: in segments, offloaded, on expert ranks; as the reference.

By a cost given by hand, as other tests measure it, but for the one that says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cli.running import refused, weft, weft_json
from tests.runtime.ranks import run
from weft.cost import Share
from weft.errors import InputError
from weft.ir.kinds import Kind, Stream
from weft.ir.program import Program
from weft.lower import replicated
from weft.schedules import interleaved_1f1b, kimi_k2, one_f_one_b
from weft.train import Settings, checked, own_text, trained

K2 = kimi_k2(devices=2, microbatches=2, stages_per_device=2)


def settings(program: Program = K2, **asked: Any) -> Settings:
    sizes: dict[str, Any] = {"layers": 4, "hidden": 16, "heads": 2, "context": 8, "steps": 2}
    sizes |= {"model": "moe-small", "microbatch_size": 2}
    return Settings(program=program, data=own_text(), **(sizes | asked))


def losses(asked: Settings) -> list[float]:
    return trained(asked, cost=Share().cost(asked.program)).losses


@pytest.mark.parametrize("amount", ["none", "auto", "all", 0.5])
def test_what_is_offloaded_changes_no_loss(amount: str | float) -> None:
    asked = settings(offload=amount, dropout=0.1)
    outcome = trained(asked, cost=Share().cost(asked.program))
    assert outcome.losses == checked(asked)
    kinds = outcome.measured.program.actions.kind
    away, home = np.isin(kinds, Kind.OFFLOAD).sum(), np.isin(kinds, Kind.ONLOAD).sum()
    assert away == home
    assert amount == "auto" or (away > 0) == (amount != "none")


def test_pairs_and_who_asks_for_it_run_in_segments() -> None:
    def streams(asked: Settings) -> set[Stream]:
        program = trained(asked, cost=Share().cost(asked.program)).measured.program
        return {lane.stream for lane in program.lanes}

    plain = interleaved_1f1b(devices=2, microbatches=2)
    assert Stream.EXPERTS in streams(settings(steps=1))
    assert Stream.EXPERTS not in streams(settings(plain, steps=1))
    assert Stream.EXPERTS in streams(settings(plain, steps=1, experts=True))
    assert Stream.EXPERTS not in streams(settings(steps=1, model=None))


def test_two_processes_have_the_losses_of_the_reference() -> None:
    asked = settings(offload="all")
    assert run(2, losses, asked) == [checked(asked)] * 2


def test_expert_ranks_have_the_losses_of_the_reference() -> None:
    program = replicated(one_f_one_b(devices=1, microbatches=2), 2, expert_ranks=2)
    asked = settings(program, experts=True, offload=0.5)
    assert run(2, losses, asked) == [checked(asked)] * 2


def test_segments_are_measured() -> None:
    """Of every stage what F and I are made of; a dense layer dispatches nothing."""
    cost = trained(settings(steps=1)).predicted.cost
    for kind in ("F", "I"):
        shares = np.array(cost.parts[kind])
        assert shares.shape == (4, 4)
        assert shares[0, [1, 3]].tolist() == [0, 0]
        assert (shares[1:] > 0).all()


def test_models_without_experts_are_refused() -> None:
    with pytest.raises(InputError, match="no stage shows any; name a model that has them"):
        checked(settings(model=None, experts=True))
    group = replicated(one_f_one_b(devices=1, microbatches=2), 2, expert_ranks=2)
    with pytest.raises(InputError, match="the model has no experts to hold apart"):
        checked(settings(group, model=None))
    with pytest.raises(InputError, match="expert ranks are processes"):
        trained(settings(group))


def test_the_command_takes_what_the_settings_have() -> None:
    words = ["train", "--model", "moe-small", "--schedule", "kimi-k2", "-d", "2", "-n", "2"]
    words += ["--steps", "1", "--context", "8", "--reference"]
    first = weft_json(*words)["losses"]
    assert weft_json(*words, "--offload", "0.25", "--experts")["losses"] == first
    assert weft_json(*words, "--expert-ranks", "2")["losses"] != first  # with twice the data
    for amount in ("most", "0", "1"):  # a whole number is a stage elsewhere
        refused(weft(*words, "--offload", amount), "all, or a fraction with a point, from 0.0 to")
