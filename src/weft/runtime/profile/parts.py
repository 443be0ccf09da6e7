"""Parts: what the segments of a stage take, in steps of a pipeline whose stages are cut.

    F of stage 1    attention 3 ms  dispatch 1 ms  experts 3 ms  combine 1 ms     whole: 8 ms
                    shares    3/8            1/8          3/8           1/8

Segments are timed where they run, beside those of other microbatches, and with whatever an exchange
of tokens waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

import numpy as np

from weft.cost.cost import Shares
from weft.ir.kinds import Kind, Part
from weft.runtime.profile.found import Found
from weft.runtime.profile.trial import FIELDS
from weft.runtime.result import Span

COMPUTED = [Part.ATTENTION, Part.EXPERTS]
WEIGHTS = np.array((0.5, 0.0, 0.5, 0.0))  # of W, as `Cost` has it


def actions_of(spans: Iterable[Span]) -> dict[int, Found]:
    """By stage, the seconds of its actions, and of the segments that they are cut into."""
    whole: defaultdict[tuple[int, str, int, int], float] = defaultdict(float)
    found: defaultdict[int, Found] = defaultdict(Found)
    for span in spans:
        action = span.action
        if action.kind not in FIELDS or span.is_closing:
            continue
        assert action.microbatch is not None
        # numbers of microbatches come again in later updates of an asynchronous program
        number = span.update, action.microbatch
        whole[action.stage, FIELDS[action.kind], *number] += span.seconds
        if action.segment is not None:
            found[action.stage].add(Found({_name(action.kind, action.segment): [span.seconds]}))
    for (stage, name, *_), seconds in whole.items():
        found[stage].add(Found({name: [seconds]}))
    return found


def shares_of(found: Found) -> dict[str, Shares]:
    """The shares of F and I of a stage by part, as `Cost` takes them; none where it is whole."""
    forward, backward, both = (_seconds(found, kind) for kind in (Kind.F, Kind.I, Kind.B))
    shares = {"F": _shares(forward)} if forward else {}
    if backward:
        shares["I"] = _shares(backward)
    elif both:  # half of it is W
        inputs = np.maximum(2 * np.array(_shares(both)) - WEIGHTS, 0.0)
        shares["I"] = _as_shares(inputs / inputs.sum())
    return shares


def _name(kind: Kind, segment: int) -> str:
    return f"{kind.name} {segment}"


def _seconds(found: Found, kind: Kind) -> dict[int, float]:
    """The median seconds of each segment."""
    named = {name.partition(" ")[::2]: runs for name, runs in found.seconds.items()}
    return {int(at): median(runs) for (own, at), runs in named.items() if own == kind.name and at}


def _shares(seconds: Mapping[int, float]) -> Shares:
    """The share of each part; of attention and experts as if a stage had equally many of them.

    `weft.cost.parts` divides them so among those that it has.
    """
    total, count = np.zeros(len(Part)), np.zeros(len(Part))
    for segment, taken in seconds.items():
        total[segment % len(Part)] += taken
        count[segment % len(Part)] += 1
    shares = total / total.sum()
    each = shares[COMPUTED] / np.maximum(count[COMPUTED], 1)
    if count[COMPUTED[0]] != count[COMPUTED[1]]:
        shares[COMPUTED] = each * shares[COMPUTED].sum() / each.sum()
    return _as_shares(shares)


def _as_shares(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Shares:
    attention, dispatch, experts, combine = shares.tolist()
    return attention, dispatch, experts, combine
