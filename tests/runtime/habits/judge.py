"""The judge: what came of a case.

equal    as plain torch within rounding, as the reference to the bit
refused  by an error of Weft's own, before any weight changed
wrong    anything else
void     plain torch itself fails, so that there is nothing to compare with
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from tests.runtime.habits.case import Case
from tests.runtime.habits.contenders import (
    Array,
    Trace,
    pipeline,
    plain,
    reference,
    without_pipe,
)
from tests.runtime.habits.grammar import Layer
from weft.errors import WeftError
from weft.ir.kinds import Kind
from weft.runtime.reference import versions_of

Outcome = Literal["equal", "refused", "wrong", "void"]

LAST_BITS = 1e-6  # of float32; wrong is more
SMALL = 0.05  # numbers below are compared as if they were this large


class Verdict(NamedTuple):
    """What came of a case, and the reason or the differences."""

    kind: Outcome
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.kind, *(f"  {reason}" for reason in self.reasons[:12])])


def judge(case: Case) -> Verdict:
    """In one process."""
    wanted = None  # where what is drawn cannot be keyed, in plain torch neither
    try:
        wanted = plain(case)
    except WeftError:
        pass
    except Exception as error:
        return Verdict("void", (_text(error),))
    if wanted and not all(_is_finite(value) for value in wanted.numbers.values()):
        return Verdict("void", ("plain torch gives numbers that are not finite",))
    if reason := unable(case):
        return Verdict("void", (reason,))
    found = Trace()
    try:
        pipeline(case, found)
    except Exception as error:
        return failure(case, error, found)
    if wanted is None:
        return Verdict("wrong", ("not refused, although it draws what cannot be keyed",))
    return compared(case, found, wanted)


def unable(case: Case) -> str:
    """Why torch cannot compute this in another type: for some of its kernels there is none."""
    if not case.training.precision:
        return ""
    try:
        reference(case)
    except WeftError:
        pass
    except Exception as error:
        return _text(error)
    return ""


def failure(case: Case, error: Exception, found: Trace) -> Verdict:
    """A refusal is an error of Weft's own, and not one that wraps whatever went wrong.

    It comes before any weight has changed, unless the user has changed a module by then; but
    asynchronous stages may be ahead.
    """
    if not isinstance(error, WeftError) or re.search(r"device \d+ failed", str(error)):
        return Verdict("wrong", (f"pipeline fails: {_text(error)}",))
    if "within the deadline" in str(error):
        return Verdict("wrong", (f"ranks wait for each other: {_text(error)}",))
    is_due = not case.is_asynchronous and not case.training.changes
    if found.updates and is_due:
        return Verdict("wrong", (f"refused after weights have changed: {_text(error)}",))
    return Verdict("refused", (_text(error),))


def compared(case: Case, found: Trace, wanted: Trace) -> Verdict:
    """What a pipeline saw, against plain torch and the reference."""
    try:
        exact = reference(case)
    except Exception as error:
        return Verdict("wrong", (f"reference fails: {_text(error)}",))
    reasons = [*_different(case, found, exact)]
    if is_plain(case):
        reasons += [*_far(case, found, wanted), *_other_calls(case, found, wanted)]
        reasons += _other_modes(found, wanted)
    return Verdict("wrong", tuple(reasons)) if reasons else Verdict("equal")


def is_plain(case: Case) -> bool:
    """Whether weights are never stale, nor rounded, so that plain torch says what is right."""
    if case.training.precision or case.training.compress:
        return False
    if not case.is_asynchronous:
        return True
    program, updates = case.plan.program, len(case.training.steps)
    version, backward = versions_of(program)
    places = [
        (update, microbatch, stage)
        for update in range(updates)
        for microbatch in range(program.microbatches)
        for stage in range(program.stages)
    ]
    return backward is None and all(version(*place) == place[0] for place in places)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _is_finite(value: Array | None) -> bool:
    return value is None or bool(np.isfinite(value).all())


def is_writing(layer: Layer) -> bool:
    """Whether a layer's forward changes a weight, in evaluation too."""
    return layer.habit in ("Clamped", "EmbeddingOfNorm")


# numbers


def _different(case: Case, found: Trace, exact: Trace) -> Iterator[str]:
    """What is not, bit for bit, what the reference has, which does not evaluate."""
    if "evaluate" in case.training.steps and any(is_writing(one) for one in case.model.layers):
        return
    for name, value in _comparable(case, found):
        if without_pipe(name) not in exact.numbers:
            continue
        other = exact.numbers[without_pipe(name)]
        if (value is None) != (other is None):
            yield f"{name}: {_there(value)}, by the reference {_there(other)}"
        elif value is not None and other is not None and not np.array_equal(value, other):
            off = _distance(value, other)
            if off > (LAST_BITS if _is_added_otherwise(case) else 0):
                yield f"{name}: not the reference's, off by {off:.3g}"


def _is_added_otherwise(case: Case) -> bool:
    """Whether uses of one weight may be added in another order than the reference's.

    Those of a layer whose gradient is deferred and others beside it, where hooks keep the stage
    from being outlined; and those of a checkpoint that starts backwards of its own.
    """
    is_divided = bool(np.isin(case.plan.program.actions.kind, (Kind.I, Kind.W)).any())
    is_reentrant = any(one.habit == "CheckpointedReentrant" for one in case.model.layers)
    return _is_shared(case) and (is_divided or is_reentrant)


def _far(case: Case, found: Trace, wanted: Trace) -> Iterator[str]:
    """What differs from plain torch by more than rounding."""
    for name, value in _comparable(case, found):
        if without_pipe(name) not in wanted.numbers:
            yield f"{name}: unknown to plain torch"
            continue
        other = wanted.numbers[without_pipe(name)]
        if (value is None) != (other is None):
            yield f"{name}: {_there(value)}, by plain torch {_there(other)}"
        elif value is not None and other is not None:
            off = _distance(value, other)
            if not off <= tolerance(case):
                yield f"{name}: not plain torch's, off by {off:.3g}"
    for name in sorted(wanted.numbers.keys() - {without_pipe(name) for name in found.numbers}):
        if not (case.is_asynchronous and name.startswith("norm of ")):  # they come later
            yield f"{name}: nowhere in the pipeline"


def _comparable(case: Case, found: Trace) -> Iterator[tuple[str, Array | None]]:
    """Gradients that wait for an update are not summed over copies and ends of ties yet."""
    is_waiting = case.training.optimizer != "none" and "pile" in case.training.steps[-1:]
    is_apart = len(case.plan.program.placement.pipes) > 1 or _is_shared(case)
    for name, value in found.numbers.items():
        if not (is_waiting and is_apart and name.startswith("gradient of ")):
            yield name, value


def _is_shared(case: Case) -> bool:
    return any(one.same_as is not None or one.tied_to is not None for one in case.model.layers)


def tolerance(case: Case) -> float:
    """Of the largest number of a tensor: what another order of sums may make."""
    is_cast = case.training.is_cast or any(one.habit == "Cast" for one in case.model.layers)
    if case.model.dtype == "float64":
        return 1e-6 if any(one.form == "with float" for one in case.model.layers) else 1e-8
    return 0.15 if is_cast else 2e-3


def _distance(one: Array, other: Array) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not one.size:
        return 0.0
    apart = np.abs(one.astype(np.complex128) - other.astype(np.complex128)).max()
    return float(apart / max(SMALL, np.abs(other).max()))


def _there(value: Array | None) -> str:
    return "none" if value is None else "one"


# hooks and modes


def _other_calls(case: Case, found: Trace, wanted: Trace) -> Iterator[str]:
    """Hooks that saw something else; those of a forward see it again where it is recomputed."""
    is_inner = any(one.habit == "InnerGradient" for one in case.model.layers)
    for name, seen in wanted.seen.items():
        mine = found.seen.get(name, [])
        for kind in sorted({kind for kind, _ in seen} | {kind for kind, _ in mine}):
            ours = sorted(value for one, value in mine if one == kind)
            theirs = sorted(value for one, value in seen if one == kind)
            if (kind == "forward" or is_inner) and case.is_recomputed:
                ours, theirs = _distinct(ours), _distinct(theirs)
            if len(ours) != len(theirs):
                yield f"{kind} hooks of {name}: {len(ours)} calls, by plain torch {len(theirs)}"
            elif not np.allclose(ours, theirs, rtol=10 * tolerance(case), atol=tolerance(case)):
                yield f"{kind} hooks of {name}: other values than in plain torch"


def _distinct(values: list[float]) -> list[float]:
    return sorted({round(value, 6) for value in values})


def _other_modes(found: Trace, wanted: Trace) -> list[str]:
    return [
        f"{name}: mode {'train' if mode else 'eval'}, by plain torch the other"
        for name, mode in found.modes.items()
        if without_pipe(name) and wanted.modes.get(without_pipe(name), mode) != mode
    ]
