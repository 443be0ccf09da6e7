"""The judge over real processes: one device each, several cases in the same processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch.distributed as dist

from tests.runtime.habits.case import Case
from tests.runtime.habits.contenders import Trace, pipeline, plain
from tests.runtime.habits.grammar import Carried
from tests.runtime.habits.judge import Verdict, compared, failure, unable
from tests.runtime.habits.where import rank_on
from tests.runtime.like_gpus import like_gpus, seeming
from tests.runtime.ranks import TRANSPORTS, run
from weft.errors import RankError
from weft.runtime.ranks.carriers import OF_GPUS

CARRIERS = (*TRANSPORTS, *OF_GPUS)


class Share(NamedTuple):
    """What one rank saw of a case, and what it ended with unless it got to the end."""

    trace: Trace
    failure: Verdict | None = None
    is_anothers: bool = False


def judge_in_ranks(cases: Sequence[Case], transport: str, place: str = "cpu") -> list[Verdict]:
    """Cases that all have as many devices; those that plain torch cannot train are void.

    Where ranks are on CPUs, stand-ins take the place of the transports of GPUs.
    """
    wanted = {index: trace for index, case in enumerate(cases) if (trace := _plain(case))}
    tried = [cases[index] for index in wanted]
    by_rank = run(cases[0].plan.program.devices, _shares, tried, transport, place)
    verdicts = [Verdict("void")] * len(cases)
    for index, shares in zip(wanted, zip(*by_rank, strict=True), strict=True):
        verdicts[index] = _judged(cases[index], shares, wanted[index])
    return verdicts


def _plain(case: Case) -> Trace | None:
    try:
        return None if unable(case) else plain(case)
    except Exception:
        return None


def _shares(cases: Sequence[Case], transport: str, place: str) -> list[Share]:
    """In a rank."""
    rank_on(place, dist.get_rank())
    hosts = 2 if transport == "mixed" else 1
    with ExitStack() as patches:
        if transport in OF_GPUS:
            patches.enter_context(like_gpus(hosts) if place == "cpu" else seeming(hosts))
        return [_share(case, transport) for case in cases]


def _share(case: Case, transport: str) -> Share:
    trace = Trace()
    try:
        pipeline(case, trace, transport)
    except Exception as error:
        return Share(trace, failure(case, error, trace), isinstance(error, RankError))
    return Share(trace)


def _judged(case: Case, shares: Sequence[Share], wanted: Trace) -> Verdict:
    """All ranks together; where one refuses, the others may say that it did."""
    failed = sorted((share for share in shares if share.failure), key=lambda one: one.is_anothers)
    if failed and failed[0].failure:
        is_ahead = any(share.trace.updates for share in shares)
        is_late = is_ahead and not _may_be_ahead(case, failed[0].failure)
        late = Verdict("wrong", ("refused after weights have changed on another rank",))
        return late if is_late and failed[0].failure.kind == "refused" else failed[0].failure
    joined = Trace()
    for trace, *_ in shares:
        joined.numbers |= trace.numbers
        joined.modes |= trace.modes
        own = {_first_name(case, name): seen for name, seen in trace.seen.items()}
        for name, seen in own.items():
            joined.seen[name] = joined.seen.get(name, []) + seen
    return compared(case, joined, wanted)


def _may_be_ahead(case: Case, failure: Verdict) -> bool:
    """As in one process; and where a recomputation shows what is refused: nobody waits for it."""
    is_shown_late = "computes something else" in failure.reasons[0]
    return case.is_asynchronous or bool(case.training.changes) or is_shown_late


def _first_name(case: Case, name: str) -> str:
    """The first name of a module that several stages share, of which each rank has its own."""
    cores = [
        f"{path}.inner" if isinstance(module, Carried) else path
        for path, module in zip(case.paths, case.modules(), strict=True)
    ]
    for core, layer in zip(cores, case.model.layers, strict=True):
        if layer.same_as is not None and (name == core or name.startswith(f"{core}.")):
            return cores[layer.same_as] + name.removeprefix(core)
    return name
