"""Undivided: why a batch and devices cannot be divided by the choices, and what would do.

Says which choices stand in the way, each alone, and the nearest batch for which they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from weft.plan.question import Choices, Question
from weft.plan.space import Space

EASING = ("recompute", "offload", "optimizer")  # the choices that divide nothing
FAR = 256  # sequences more or less of a batch that is looked for


def undivided(question: Question) -> str:
    """Why there is nothing to try, and what to change."""
    count, devices = question.sequences, question.cluster.devices
    what = "microbatches" if question.model is None else "sequences"
    asked = [name for name in question.choices.asked if name not in EASING]
    by = f" with {_flags(asked, ' and ')}" if asked else ""
    batch = f"a batch of {count:,} {what} cannot be divided over {devices:,} devices{by}"
    ways = [*_other_batch(question, what), *_fewer_choices(question, asked)]
    remedy = ", or ".join(ways) or "change --batch or --devices"
    return f"{batch}. {remedy[0].upper()}{remedy[1:]}"


def _fewer_choices(question: Question, asked: list[str]) -> Iterator[str]:
    """To leave out a choice; where no single one is enough, some."""
    usual: dict[str, Any] = {item.name: item.default for item in fields(Choices)}
    alone = [
        name
        for name in asked
        if _is_divided(replace(question, choices=replace(question.choices, **{name: usual[name]})))
    ]
    if alone:
        yield f"leave out {_flags(alone, ' or ')}"
    elif asked and _is_divided(replace(question, choices=Choices())):
        yield "leave out some of these options"


def _other_batch(question: Question, what: str) -> Iterator[str]:
    """The nearest batch that can be divided, if there is one near."""
    each = question.batch // question.sequences
    for step in range(1, FAR + 1):
        for count in (question.sequences - step, question.sequences + step):
            if count > 0 and _is_divided(replace(question, batch=count * each)):
                tokens = f" (--batch {count * each})" if question.model is not None else ""
                yield f"take {count:,} {what}{tokens}"
                return


def _is_divided(question: Question) -> bool:
    return next(Space(question).candidates, None) is not None


def _flags(names: list[str], joint: str) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    return joint.join(filter(None, (", ".join(flags[:-1]), flags[-1])))
