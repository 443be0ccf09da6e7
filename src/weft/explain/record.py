"""Record: an explanation as JSON takes it, numbers in full."""

from __future__ import annotations

from dataclasses import asdict
from typing import TypeAlias

from weft.explain.account import Account
from weft.explain.explanation import Explanation
from weft.explain.holding import Holding
from weft.explain.options import Option
from weft.explain.path import Leg, Path
from weft.notation import token
from weft.timeline import Idle, Timeline

Record: TypeAlias = dict[str, object]


def record(explanation: Explanation) -> Record:
    """An explanation as data for JSON: seconds and bytes, actions as tokens like 0F3."""
    timeline = explanation.timeline
    program = timeline.program
    return {
        "name": program.name,
        "devices": program.devices,
        "microbatches": program.microbatches,
        "stages": program.stages,
        "makespan": timeline.makespan,
        "bubble": timeline.bubble._asdict(),
        **({"steady": explanation.settled._asdict()} if explanation.settled else {}),
        "idle": {cause.value: seconds for cause, seconds in explanation.causes.items()},
        "accounts": [_account(timeline, account) for account in explanation.accounts],
        "critical_path": _path(timeline, explanation.path),
        "memory": [_holding(timeline, holding) for holding in explanation.holdings],
        "helps": {
            "better": {best: _option(option) for best, option in explanation.better.items()},
            "twice_the_microbatches": _option(explanation.larger),
            "all_recomputed": _option(explanation.leaner),
            "cheaper": [change._asdict() for change in explanation.changes],
        },
    }


def _account(timeline: Timeline, account: Account) -> Record:
    return {
        "device": account.device,
        "work": account.work,
        "idle": account.idle,
        "causes": {cause.value: seconds for cause, seconds in account.by_cause.items()},
        "stretches": [_stretch(timeline, stretch) for stretch in account.stretches],
    }


def _stretch(timeline: Timeline, stretch: Idle) -> Record:
    return {
        "start": stretch.start,
        "seconds": stretch.seconds,
        "cause": stretch.cause.value,
        "before": _token(timeline, stretch.before),
        "waits_for": _token(timeline, stretch.waits_for),
    }


def _path(timeline: Timeline, found: Path) -> Record:
    return {
        "actions": found.actions,
        "seconds": {kind.name: seconds for kind, seconds in found.kinds.items()},
        "waiting": found.waiting,
        "legs": [_leg(timeline, leg) for leg in found.legs],
    }


def _leg(timeline: Timeline, leg: Leg) -> Record:
    actions = [_token(timeline, action) for action in leg.actions]
    return asdict(leg) | {"actions": actions}


def _holding(timeline: Timeline, holding: Holding) -> Record:
    return {
        "device": holding.device,
        "peak": holding.peak,
        "time": holding.time,
        "action": _token(timeline, holding.action),
        "categories": {category.value: size for category, size in holding.categories.items()},
    }


def _option(option: Option | None) -> Record | None:
    return None if option is None else option._asdict() | {"relief": option.relief.value}


def _token(timeline: Timeline, action: int | None) -> str | None:
    return None if action is None else token(timeline.program, action)
