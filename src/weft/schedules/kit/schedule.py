"""Schedule: a function from Shape to Program, with what it claims and what it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from weft.cost import Share
from weft.errors import ShapeError
from weft.ir.program import Program
from weft.schedules.kit.shape import Shape, count

Generator: TypeAlias = Callable[[Shape], Program]

LOOPS = 2  # stages on a device where it may be any number: one would be no loop


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on the shape, in words, and how to mend a shape that breaks it."""

    words: str
    is_met: Callable[[Shape], bool]
    mend: Callable[[Shape], Shape]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a shape is refused, and the nearest that is not."""

    reason: str
    nearest: Shape


def _always(shape: Shape, share: Share) -> bool:
    return True


def _one(shape: Shape) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What the schedule promises without communication; tests hold it to that.

    formula  the time of a step as one writes it down; `seconds` computes it where `holds`
    measure  whether that time is the makespan ("wall") or the longest device's span ("span")
    peak     most microbatches between F and B (or W) on a device, in device shares
    """

    formula: str
    seconds: Callable[[Shape, Share], float]
    peak: Callable[[Shape, int], float]
    peak_formula: str
    measure: Literal["wall", "span"] = "wall"
    holds: Callable[[Shape, Share], bool] = _always
    weight_copies: Callable[[Shape], int] = _one


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A named schedule; calling it with a shape's fields gives its program."""

    name: str
    summary: str
    paper: str
    claims: Claims
    generate: Generator = field(repr=False)
    needs: Sequence[Need] = ()
    variants: Mapping[str, str] = field(default_factory=dict)
    stages_per_device: tuple[int, int | None] = (1, 1)  # least and most
    takes_graph: bool = False
    takes_pipes: bool = False
    takes_round: bool = False
    is_asynchronous: bool = False

    def __call__(self, **shape: object) -> Program:
        """The program of a shape, given as keywords: devices=4, microbatches=8.

        Without stages_per_device it has as many as everywhere else: see `stages_for`.
        """
        shape.setdefault("stages_per_device", self.stages_for())
        return self.program(Shape(**shape))  # type: ignore[arg-type]

    def stages_for(self, wanted: int | None = None) -> int:
        """Stages on a device: as wanted, or two, where it takes any number; else its own."""
        least, most = self.stages_per_device
        return max(least, wanted or LOOPS) if most is None else least

    def program(self, shape: Shape) -> Program:
        """The program of this shape; ShapeError with reason and remedy where there is none."""
        refusal = self.accepts(shape)
        if refusal is not None:
            is_other = refusal.nearest.graph != shape.graph  # the reason names what runs it
            way = "" if is_other else f" Nearest that works: {shape.changes_to(refusal.nearest)}."
            raise ShapeError(f"{self.name} {refusal.reason}.{way}")
        return self.generate(shape)

    def accepts(self, shape: Shape) -> Refusal | None:
        """None, or the first reason against the shape and the nearest shape without any."""
        needs = [*self._common_needs(), *self.needs]
        broken = [need for need in needs if not need.is_met(shape)]
        if not broken:
            return None
        nearest = shape
        for need in needs:
            if not need.is_met(nearest):
                nearest = need.mend(nearest)
        return Refusal(f"needs {broken[0].words}", nearest)

    def _common_needs(self) -> list[Need]:
        least, most = self.stages_per_device
        known = " or ".join(self.variants) or "it has none"
        bound = "at least" if most is None else "exactly"
        needs = [
            Need(
                f"one of its own variants ({known})",
                lambda shape: not shape.variant or shape.variant in self.variants,
                lambda shape: shape.but(variant=""),
            ),
            Need(
                f"{bound} {count(least, 'stages per device')}"
                + (" and pipe" if self.takes_pipes else ""),
                lambda shape: least <= shape.stages_per_device <= (most or 10**9),
                lambda shape: shape.but(stages_per_device=least),
            ),
        ]
        if not self.takes_pipes:
            needs.append(
                Need(
                    "a single pipeline per direction",
                    lambda shape: shape.pipes == 1,
                    lambda shape: shape.but(pipes=1),
                )
            )
        if not self.takes_round:
            needs.append(
                Need(
                    "no round; WPipe's two groups of stages have one",
                    lambda shape: shape.round == 0,
                    lambda shape: shape.but(round=0),
                )
            )
        if not self.takes_graph:
            needs.append(
                Need(
                    "a chain of stages; gpipe and 1f1b also run graphs",
                    lambda shape: shape.graph is None,
                    lambda shape: shape.but(graph=None, placement=None),
                )
            )
        return needs


def schedule(
    *, name: str, summary: str, paper: str, claims: Claims, **traits: object
) -> Callable[[Generator], Schedule]:
    """Turns a function from Shape to Program into a Schedule."""

    def wrap(generate: Generator) -> Schedule:
        return Schedule(
            name=name,
            summary=summary,
            paper=paper,
            claims=claims,
            generate=generate,
            **traits,  # type: ignore[arg-type]
        )

    return wrap


# Conditions that several schedules share.

EVEN_DEVICES = Need(
    "an even number of devices",
    lambda shape: shape.devices % 2 == 0,
    lambda shape: shape.but(devices=shape.devices + 1),
)

FULL_PIPE = Need(
    "at least as many microbatches as devices",
    lambda shape: shape.microbatches >= shape.devices,
    lambda shape: shape.but(microbatches=shape.devices),
)

TWICE_FULL_PIPE = Need(
    "at least twice as many microbatches as devices",
    lambda shape: shape.microbatches >= 2 * shape.devices,
    lambda shape: shape.but(microbatches=2 * shape.devices),
)
