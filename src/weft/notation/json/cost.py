"""Costs as JSON, easy to write by hand.

    {"format": "weft.cost", "version": 1,
     "stages": [{"forward": 1, "input_grad": 1, "weight_grad": 1, "saved": 4e9}, {"forward": 2}],
     "message": 1e6,
     "link": {"latency": 1e-5, "bandwidth": 5e10},
     "links": [{"from": 0, "to": 1, "latency": 1e-4, "bandwidth": 1e10}],
     "host": {"bandwidth": 2e10},
     "pairs": {"BF": 0.9}, "parts": {"F": [0.3, 0.2, 0.3, 0.2]}, "sizes": [1, 1, 0.5],
     "overhead": 2e-5, "capacity": 8e10, "host_capacity": 1e12, "barrier": true,
     "provenance": {"forward": ["measured", "derived"], "network": ["derived", "derived"]},
     "measurement": {"date": "2026-11-15", "machine": {"cores": "2"}}}

Only "stages" is needed, and of a stage only "forward". Seconds of a stage: forward, input_grad,
weight_grad, recompute (as forward where it is left out), update, reduce, and backward, which takes
the place of input_grad + weight_grad where the program splits no backward of the stage and stands
in all stages or none, close, which passes between the last gradient of a stage and its sum or
update, and gather, which is half of reduce where no stage has it; bytes: weights, gradients,
optimizer, saved, inputs; 0 where they are left out. "overhead" is what a host needs between two
actions. "message" is one number of bytes for every edge, or a list with one for each edge. "parts"
are the shares of F and of I that are attention, dispatch, experts and combine, or a list of these
for each stage. A bandwidth or capacity that is left out or null has no limit. "provenance" says of
each stage how seconds are known: given (as all are that it leaves out), measured, interpolated or
derived; beside the seconds of a stage it knows "network" and "host". "measurement" is what
`weft profile` writes of itself.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from weft.cost import (
    Cost,
    Link,
    Marks,
    Measurement,
    Memory,
    Network,
    PerStage,
    Provenance,
    Times,
)
from weft.cost.cost import Parts, Shares
from weft.cost.provenance import NAMES
from weft.errors import InputError
from weft.ir.kinds import Part
from weft.notation.json.measurement import measurement_object, read_measurement
from weft.notation.json.reading import VERSION, Node
from weft.notation.limits import check_stages
from weft.notation.places import shown

FORMAT = "weft.cost"

_WHOLE, _CLOSE, _GATHER = "backward", "close", "gather"
_SCRATCH = "scratch"  # bytes of each stage that an action needs while it runs, where known
_TIMES = tuple(field.name for field in fields(Times) if field.name not in (_WHOLE, _CLOSE, _GATHER))
_LIMITS = ("capacity", "host_capacity")
_BYTES = tuple(f.name for f in fields(Memory) if f.name not in (*_LIMITS, _SCRATCH))
_LINK = ("latency", "bandwidth")
_CUT = ("F", "I")  # into parts
_KEYS = (
    *("stages", "message", "link", "links", "host", "pairs", "parts", "sizes"),
    *("overhead", *_LIMITS, "barrier", "provenance", "measurement"),
)


# writing


def cost_object(cost: Cost) -> dict[str, object]:
    """What `read_cost` reads."""
    network = cost.network
    written: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "stages": [_stage_object(cost, stage) for stage in range(cost.stages)],
        "message": _message_object(network.message),
    }
    links = [
        {"from": int(source), "to": int(destination), **_link_object(link)}
        for (source, destination), link in network.between.items()
    ]
    optional: dict[str, object] = {
        "link": _link_object(network.default),
        "links": links,
        "host": _link_object(network.host),
        "pairs": {kinds: float(ratio) for kinds, ratio in cost.pairs.items()},
        "parts": {kind: _parts_object(shares) for kind, shares in cost.parts.items()},
        "sizes": [float(size) for size in cost.sizes],
        "overhead": float(cost.overhead),
        "provenance": {
            name: [mark.value for mark in marks] for name, marks in cost.provenance.items()
        },
        "measurement": cost.measurement and measurement_object(cost.measurement),
    }
    written |= {key: value for key, value in optional.items() if value}
    limits = {key: float(getattr(cost.memory, key)) for key in _LIMITS}
    written |= {key: limit for key, limit in limits.items() if math.isfinite(limit)}
    return written if cost.is_barrier else {**written, "barrier": False}


def _stage_object(cost: Cost, stage: int) -> dict[str, float]:
    times = {name: float(getattr(cost.times, name)[stage]) for name in _TIMES}
    sizes = {name: float(getattr(cost.memory, name)[stage]) for name in _BYTES}
    usual = dict.fromkeys((*_TIMES, *_BYTES), 0.0) | {"recompute": times["forward"]}
    given = {name: value for name, value in (times | sizes).items() if value != usual[name]}
    columns = {
        _WHOLE: cost.times.backward,
        _CLOSE: cost.times.close,
        _GATHER: cost.times.gather,
        _SCRATCH: cost.memory.scratch,
    }
    others = {name: float(found[stage]) for name, found in columns.items() if found is not None}
    return {"forward": times["forward"], **others, **given}


def _message_object(message: float | tuple[float, ...]) -> object:
    return [float(size) for size in message] if isinstance(message, tuple) else float(message)


def _link_object(link: Link) -> dict[str, float]:
    written = {"latency": float(link.latency)} if link.latency else {}
    return written | ({"bandwidth": float(link.bandwidth)} if math.isfinite(link.bandwidth) else {})


# reading


def read_cost(node: Node) -> Cost:
    """The cost of a document."""
    members = node.document(FORMAT, _KEYS, ("stages",))
    stages = _stages(members["stages"])
    network = Network(
        message=_message(members.get("message")),
        default=_link(members.get("link")),
        between=_links(members.get("links")),
        host=_link(members.get("host")),
    )
    with node.place():
        return Cost(
            times=_times(stages),
            memory=Memory(
                weights=_column(stages, "weights"),
                gradients=_column(stages, "gradients"),
                optimizer=_column(stages, "optimizer"),
                saved=_column(stages, "saved"),
                inputs=_column(stages, "inputs"),
                scratch=_optional(stages, _SCRATCH),
                capacity=_limit(members.get("capacity")),
                host_capacity=_limit(members.get("host_capacity")),
            ),
            network=network,
            pairs=_pairs(members.get("pairs")),
            parts=_parts(members.get("parts")),
            sizes=tuple(members["sizes"].numbers()) if "sizes" in members else (),
            overhead=members["overhead"].number() if "overhead" in members else 0.0,
            is_barrier="barrier" not in members or members["barrier"].flag(),
            provenance=_provenance(members.get("provenance"), len(stages)),
            measurement=_measurement(members.get("measurement"), len(stages)),
        )


def _stages(node: Node) -> list[dict[str, float]]:
    """Seconds and bytes of each stage, by name."""
    stages = []
    for item in node.items():
        members = item.members((*_TIMES, _WHOLE, _CLOSE, _GATHER, *_BYTES, _SCRATCH), ("forward",))
        stages.append({name: member.number() for name, member in members.items()})
    with node.place():
        check_stages(len(stages))
        if not stages:
            raise InputError("a cost describes at least one stage")
        if len({_WHOLE in stage for stage in stages}) > 1:
            raise InputError(f"{_WHOLE} stands in all stages or in none")
    return [{"recompute": stage["forward"], **stage} for stage in stages]


def _column(stages: list[dict[str, float]], name: str) -> PerStage:
    return tuple(stage.get(name, 0.0) for stage in stages)


def _optional(stages: list[dict[str, float]], name: str) -> PerStage | None:
    """None where no stage has it."""
    return _column(stages, name) if any(name in stage for stage in stages) else None


def _times(stages: list[dict[str, float]]) -> Times:
    times = Times(*(_column(stages, name) for name in _TIMES))
    whole = _column(stages, _WHOLE) if _WHOLE in stages[0] else None
    close, gather = (_optional(stages, name) for name in (_CLOSE, _GATHER))
    return replace(times, backward=whole, close=close, gather=gather)


def _message(node: Node | None) -> float | tuple[float, ...]:
    if node is not None and isinstance(node.value, list):
        return tuple(node.numbers())
    return 0.0 if node is None else node.number()


def _links(node: Node | None) -> dict[tuple[int, int], Link]:
    links: dict[tuple[int, int], Link] = {}
    for item in [] if node is None else node.items():
        members = item.members(("from", "to", *_LINK), ("from", "to"))
        ends = (members["from"].count(), members["to"].count())
        with item.place():
            if ends in links:
                raise InputError(f"the link from {ends[0]} to {ends[1]} stands twice")
        links[ends] = _link_of(members)
    return links


def _link(node: Node | None) -> Link:
    return Link() if node is None else _link_of(node.members(_LINK))


def _link_of(members: dict[str, Node]) -> Link:
    latency = members["latency"].number() if "latency" in members else 0.0
    return Link(latency, _limit(members.get("bandwidth")))


def _limit(node: Node | None) -> float:
    return math.inf if node is None or node.value is None else node.number()


def _pairs(node: Node | None) -> dict[str, float]:
    """Ratios by the two kinds in alphabetical order, as `Cost` looks them up."""
    pairs: dict[str, float] = {}
    if node is None:
        return pairs
    for kinds, ratio in node.members_of_any_name().items():
        key = "".join(sorted(kinds))
        with node.place():
            if len(key) != 2 or set(key) - set("FBIWR"):
                raise InputError(f"{shown(kinds)} is no pair; one reads BF: two kinds of action")
            if key in pairs:
                raise InputError(f"the pair {key} stands twice")
        pairs[key] = ratio.number()
    return pairs


def _parts_object(shares: Parts) -> object:
    return np.array(shares, np.float64).tolist()


def _parts(node: Node | None) -> dict[str, Parts]:
    """Shares of all stages alike, or a list of them for each stage."""
    parts: dict[str, Parts] = {}
    for kind, member in node.members(_CUT).items() if node else ():
        is_each = isinstance(member.value, list) and isinstance(next(iter(member.value), 0), list)
        parts[kind] = tuple(map(_shares, member.items())) if is_each else _shares(member)
    return parts


def _shares(node: Node) -> Shares:
    attention, dispatch, experts, combine = node.numbers(exactly=len(Part))
    return attention, dispatch, experts, combine


def _provenance(node: Node | None, stages: int) -> Marks:
    if node is None:
        return {}
    return {name: _marks(member, stages) for name, member in node.members(NAMES).items()}


def _measurement(node: Node | None, stages: int) -> Measurement | None:
    return None if node is None else read_measurement(node, stages)


def _marks(node: Node, stages: int) -> tuple[Provenance, ...]:
    node.texts(exactly=stages)
    return tuple(item.choice(Provenance) for item in node.items())
