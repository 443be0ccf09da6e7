"""Planned: proposals as rows of a table, as words, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from weft.cost import Layout
from weft.cost.units import BYTES, SECONDS, fitting
from weft.draw.caption import percent
from weft.plan.needs import Need
from weft.plan.progress import Found
from weft.plan.proposal import Proposal
from weft.plan.question import Question


class Heading(NamedTuple):
    """What a column is called, what it says of a proposal, and what that means."""

    name: str
    cell: Callable[[Proposal], str]
    note: str = ""


def rows_of(proposals: Sequence[Proposal]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, a row for each proposal."""
    columns = _columns(proposals)
    rows = [
        [str(rank), *(column.cell(one) for column in columns)]
        for rank, one in enumerate(proposals, start=1)
    ]
    return ["", *(column.name for column in columns)], rows


def notes_of(proposals: Sequence[Proposal]) -> list[tuple[str, str]]:
    """What the columns mean."""
    return [(column.name, column.note) for column in _columns(proposals) if column.note]


def _columns(proposals: Sequence[Proposal]) -> list[Heading]:
    """The columns in which these have something to say."""
    time = fitting(proposals[0].predicted.seconds, SECONDS)
    size = fitting(max(one.trial.peak for one in proposals), BYTES)
    columns = [
        Heading("schedule", lambda one: one.trial.candidate.title),
        Heading("T", lambda one: str(_layout(one).tensor), "devices that share every layer"),
        Heading("D", lambda one: str(one.trial.candidate.shape.devices), "devices of a pipeline"),
        Heading("K", lambda one: str(_stages(one)), "stages on each of them"),
        Heading("E", lambda one: str(_layout(one).experts), "groups that share the experts"),
        Heading("R", lambda one: str(_layout(one).replicas), "copies of the pipeline"),
        Heading("N", lambda one: str(one.trial.candidate.division.microbatches), "microbatches"),
        Heading("B", _size, "sequences of each"),
        Heading("optimizer", _optimizer, "whether copies share its state"),
        Heading("relief", relief, "what is done for the memory"),
        Heading(f"time, {time.name}", lambda one: time.number(one.predicted.seconds), "of a step"),
        Heading("MFU", _mfu, "FLOPs of the model, of what all devices can do"),
        Heading(
            f"memory, {size.name}", lambda one: size.number(one.trial.peak), "most of a device"
        ),
        Heading("bubble", lambda one: percent(one.predicted.bubble), "idle share of device time"),
        Heading("limit", lambda one: one.predicted.limit, "what takes most beside the computation"),
    ]
    silent = {"E"} if all(_layout(one).experts == 1 for one in proposals) else set()
    silent |= {"optimizer"} if all(_optimizer(one) != "whole" for one in proposals) else set()
    silent |= {"relief"} if all(relief(one) == "none" for one in proposals) else set()
    silent |= {"MFU", "B", "T"} if proposals[0].predicted.mfu is None else set()
    return [column for column in columns if column.name not in silent]


def _layout(one: Proposal) -> Layout:
    return one.trial.candidate.division.layout


def _optimizer(one: Proposal) -> str:
    """How the state of the optimizer is kept, in a word."""
    layout = _layout(one)
    if layout.copies == 1:
        return "-"
    return "shared" if layout.is_sharded else "whole"


def _stages(one: Proposal) -> int:
    return one.trial.candidate.shape.stages_per_device


def _size(one: Proposal) -> str:
    return str(one.trial.candidate.division.microbatch_size)


def _mfu(one: Proposal) -> str:
    return "-" if one.predicted.mfu is None else percent(one.predicted.mfu)


def relief(one: Proposal) -> str:
    """What is done for the memory, in words."""
    ease, stages = one.trial.ease, one.trial.candidate.shape.stages
    words = ["selective"] if ease.is_selective else []
    if ease.recomputed:
        count = len(ease.recomputed)
        words.append("recompute all" if count == stages else f"recompute {count} of {stages}")
    words += ["offload"] if ease.is_offloading else []
    return ", ".join(words) or "none"


def words_of(found: Found, needed: Sequence[Need]) -> Iterator[str]:
    """What stands below the table."""
    best = found.proposals[0]
    fastest = min(one.predicted.seconds for one in found.proposals)
    if fastest < best.predicted.seconds:
        yield "Of plans within 0.5%, the one that bears wrong times best comes first."
    yield f"Plan 1 has stages of {' '.join(map(str, best.trial.layers))} layers."
    if best.sensitivity is not None:
        yield f"If the times of its stages are up to 5% off, it takes {_change(best)} on average."
    for need in needed:
        yield f"{need.words}."
    left = found.candidates - found.tried - found.hopeless
    words = [f"{found.tried:,} of {found.candidates:,} candidates were simulated"]
    words += [f"{found.hopeless:,} cannot fit or be faster"] if found.hopeless else []
    words += [f"{left:,} less likely ones were left out (--effort)"] if left else []
    yield f"{'; '.join(words)}."


def _change(best: Proposal) -> str:
    share = best.sensitivity or 0.0
    return f"{percent(abs(share))} {'more' if share >= 0 else 'less'}"


def described(
    question: Question, found: Found, needed: Sequence[Need], top: int
) -> dict[str, object]:
    """All of it, as JSON has it."""
    return {
        "devices": question.cluster.devices,
        "batch": question.batch,
        "plans": [
            {"rank": rank, **_described(one)}
            for rank, one in enumerate(found.proposals[:top], start=1)
        ],
        "needs": [
            {
                "what": need.what,
                "amount": need.amount,
                "seconds": need.seconds,
                "saves": need.saves,
                "words": need.words,
            }
            for need in needed
        ],
        "tried": found.tried,
        "hopeless": found.hopeless,
        "candidates": found.candidates,
        "actions": found.actions,
        "is_done": found.is_done,
    }


def _described(one: Proposal) -> dict[str, object]:
    trial, predicted = one.trial, one.predicted
    division, shape, ease = trial.candidate.division, trial.candidate.shape, trial.ease
    layout = division.layout
    return {
        "schedule": trial.candidate.schedule.name,
        "variant": shape.variant,
        "tensor": layout.tensor,
        "pipeline": shape.devices,
        "stages_per_device": shape.stages_per_device,
        "experts": layout.experts,
        "replicas": layout.replicas,
        "is_sharded": layout.is_sharded,
        "microbatches": division.microbatches,
        "microbatch_size": division.microbatch_size,
        "layers": list(trial.layers),
        "selective": ease.is_selective,
        "recomputed": sorted(ease.recomputed),
        "offload": ease.is_offloading,
        "seconds": predicted.seconds,
        "mfu": predicted.mfu,
        "tokens_per_second": predicted.tokens_per_second,
        "bubble": predicted.bubble,
        "memory": list(predicted.memory),
        "capacity": predicted.capacity,
        "limit": predicted.limit,
        "account": one.account and one.account._asdict(),
        "sensitivity": one.sensitivity,
    }
