"""Options: other schedules, variants and sizes at the same shape, each simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from weft.errors import InputError, ProgramError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.lower import recompute
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.timeline import Timeline

MOST_CELLS = 1_000_000  # stages times microbatches of a step that is tried
SLOWEST = 1.5  # times as long: what is slower is no way to save memory
SAME = 1e-9  # of a time or size: less is no difference

TimeOf: TypeAlias = Callable[[Program], Timeline]


class Candidate(NamedTuple):
    """A schedule and a shape that it takes."""

    schedule: Schedule
    shape: Shape


class Option(NamedTuple):
    """What a candidate comes to.

    memory       the most that a device holds
    staleness    the most updates that weights in use lag behind
    is_stashing  whether a backward uses the weights of its forward
    """

    name: str
    variant: str
    stages_per_device: int
    microbatches: int
    seconds: float
    bubble: float
    memory: float
    peak: float
    staleness: int
    is_stashing: bool

    @property
    def title(self) -> str:
        return f"{self.name} ({self.variant})" if self.variant else self.name


def candidates(schedule: Schedule, shape: Shape) -> list[Candidate]:
    """All that computes the same: every schedule that flushes, or every one that does not."""
    found = []
    for other in REGISTRY:
        if other.is_asynchronous == schedule.is_asynchronous:
            for variant in ("", *other.variants):
                own = shape.but(
                    stages_per_device=_stages(other, schedule, shape),
                    pipes=shape.pipes if other.takes_pipes else 1,
                    round=shape.round if other.takes_round else 0,
                    variant=variant,
                )
                if other.accepts(own) is None and (other, own) != (schedule, shape):
                    found.append(Candidate(other, own))
    return found


def larger(schedule: Schedule, shape: Shape) -> Candidate | None:
    """A step of twice the microbatches, where the schedule takes them."""
    twice = shape.but(microbatches=2 * shape.microbatches)
    if schedule.is_asynchronous or twice.microbatches * twice.stages > MOST_CELLS:
        return None
    return Candidate(schedule, twice) if schedule.accepts(twice) is None else None


def _stages(other: Schedule, schedule: Schedule, shape: Shape) -> int:
    """As many stages on a device as the shape has, where the schedule takes them."""
    if shape.graph is not None:
        return other.stages_per_device[0]
    own = shape.stages_per_device
    return other.stages_for(own if other is schedule else max(own, other.stages_for()))


def tried(candidate: Candidate, time_of: TimeOf) -> Option | None:
    """The candidate simulated; None where the costs or the passes do not suit it."""
    schedule, shape = candidate
    try:
        timeline = time_of(schedule.program(shape))
    except (InputError, ProgramError):
        return None
    return _option(timeline, schedule.name, shape.variant)


def recomputed(timeline: Timeline) -> Option | None:
    """The same with everything recomputed; None where that changes nothing or cannot be had."""
    program = timeline.program
    if (program.actions.kind == Kind.R).any():
        return None
    try:
        again = simulate(recompute(program), timeline.cost)
    except (InputError, ProgramError):
        return None
    return _option(again, program.name, "all recomputed (--recompute all)")


def _option(timeline: Timeline, name: str, variant: str) -> Option:
    program = timeline.program
    return Option(
        name=name,
        variant=variant,
        stages_per_device=-(-program.stages // program.devices),
        microbatches=program.microbatches,
        seconds=timeline.makespan,
        bubble=timeline.bubble.wall,
        memory=max(timeline.memory.peaks),
        peak=max(timeline.peak_activations),
        staleness=max(staleness(program)),
        is_stashing=program.is_stashing,
    )


def helpful(timeline: Timeline, options: Iterable[Option]) -> dict[str, Option]:
    """The best of the options in each respect, where one is better than what there is.

    What mixes versions of the weights is no option for what does not.
    """
    now = timeline.makespan, max(timeline.memory.peaks)
    sound = [one for one in options if one.is_stashing or not timeline.program.is_stashing]
    return dict(_best(sound, *now))


def _best(options: list[Option], seconds: float, memory: float) -> Iterator[tuple[str, Option]]:
    def is_less(value: float, than: float) -> bool:
        return value < than * (1 - SAME)

    faster = [option for option in options if is_less(option.seconds, seconds)]
    bearable = [option for option in options if option.seconds <= SLOWEST * seconds]
    leaner = [option for option in bearable if is_less(option.memory, memory)]
    no_fuller = [option for option in faster if not is_less(memory, option.memory)]
    no_slower = [option for option in leaner if not is_less(seconds, option.seconds)]
    ranked = (
        ("fastest", faster, _by_time),
        ("fastest without more memory", no_fuller, _by_time),
        ("leanest", leaner, _by_memory),
        ("leanest without more time", no_slower, _by_memory),
    )
    for words, among, key in ranked:
        if among:
            yield words, min(among, key=key)


def _by_time(option: Option) -> tuple[float, float]:
    return float(f"{option.seconds:.9g}"), option.memory


def _by_memory(option: Option) -> tuple[float, float]:
    return float(f"{option.memory:.9g}"), option.seconds
