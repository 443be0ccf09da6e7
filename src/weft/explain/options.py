"""Options: other schedules, variants and sizes at the same shape, each simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from weft.errors import InputError, ProgramError
from weft.explain.relief import Relief, is_fitting, reliefs, relieved
from weft.ir.program import Program
from weft.ir.versions import staleness
from weft.schedules import REGISTRY, Schedule, Shape
from weft.simulate import simulate
from weft.timeline import Timeline

MOST_CELLS = 1_000_000  # stages times microbatches of a step that is tried
SLOWEST = 1.5  # times as long: what is slower is no way to save memory
SAME = 1e-9  # of a time or size: less is no difference
FITTING, NO_FULLER = "fastest that fits", "fastest without more memory"

TimeOf: TypeAlias = Callable[[Program], Timeline]


class Candidate(NamedTuple):
    """A schedule and a shape that it takes."""

    schedule: Schedule
    shape: Shape


class Option(NamedTuple):
    """What a candidate comes to.

    relief       what makes it fit, where it does not by itself
    memory       the most that a device holds
    is_fitting   whether a device has as much; None where that has no limit
    staleness    the most updates missing in the weights that are used
    is_stashing  whether a backward uses the weights of its forward
    """

    name: str
    variant: str
    relief: Relief
    stages_per_device: int
    microbatches: int
    seconds: float
    bubble: float
    memory: float
    is_fitting: bool | None
    peak: float
    staleness: int
    is_stashing: bool

    @property
    def title(self) -> str:
        """Its name, with the variant and what makes it fit."""
        name = f"{self.name} ({self.variant})" if self.variant else self.name
        return f"{name} {self.relief.value}".rstrip()


def candidates(schedule: Schedule, shape: Shape) -> list[Candidate]:
    """All that computes the same: every synchronous schedule, or every asynchronous one."""
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
    timeline = _timed(candidate, time_of)
    return _option(timeline, candidate, Relief.NONE) if timeline else None


def all_tried(candidate: Candidate, time_of: TimeOf) -> Iterator[Option]:
    """The candidate simulated, and where it does not fit with what makes it fit."""
    timeline = _timed(candidate, time_of)
    if timeline is not None:
        yield _option(timeline, candidate, Relief.NONE)
        yield from eased(timeline, candidate)


def eased(timeline: Timeline, candidate: Candidate) -> Iterator[Option]:
    """What makes a candidate fit that does not, where anything does."""
    for relief, again in reliefs(timeline):
        yield _option(again, candidate, relief)


def recomputed(timeline: Timeline) -> Option | None:
    """The same with everything recomputed; None where that changes nothing or cannot be had."""
    try:
        again = simulate(relieved(timeline, Relief.RECOMPUTE), timeline.cost)
    except (InputError, ProgramError):
        return None
    return _described(again, timeline.program.name, "", Relief.RECOMPUTE)


def _timed(candidate: Candidate, time_of: TimeOf) -> Timeline | None:
    try:
        return time_of(candidate.schedule.program(candidate.shape))
    except (InputError, ProgramError):
        return None


def _option(timeline: Timeline, candidate: Candidate, relief: Relief) -> Option:
    return _described(timeline, candidate.schedule.name, candidate.shape.variant, relief)


def _described(timeline: Timeline, name: str, variant: str, relief: Relief) -> Option:
    program = timeline.program
    return Option(
        name=name,
        variant=variant,
        relief=relief,
        stages_per_device=-(-program.stages // program.devices),
        microbatches=program.microbatches,
        seconds=timeline.makespan,
        bubble=timeline.bubble.wall,
        memory=max(timeline.memory.peaks),
        is_fitting=is_fitting(timeline),
        peak=max(timeline.peak_activations),
        staleness=max(staleness(program)),
        is_stashing=program.is_stashing,
    )


def helpful(timeline: Timeline, options: Iterable[Option]) -> dict[str, Option]:
    """The best of the options in each respect, where one is better than what there is.

    What does not fit is no option, and what mixes versions of the weights is none for what does
    not. Where the timeline itself does not fit, every option that does is better.
    """
    sound = [
        option
        for option in options
        if option.is_fitting is not False
        and (option.is_stashing or not timeline.program.is_stashing)
    ]
    if is_fitting(timeline) is False:
        return dict(_best_fitting(sound))
    return dict(_best(sound, timeline.makespan, max(timeline.memory.peaks)))


def _best_fitting(options: list[Option]) -> Iterator[tuple[str, Option]]:
    if options:
        fastest = min(options, key=_by_time)
        yield FITTING, fastest
        bearable = [option for option in options if option.seconds <= SLOWEST * fastest.seconds]
        yield "leanest", min(bearable, key=_by_memory)


def _best(options: list[Option], seconds: float, memory: float) -> Iterator[tuple[str, Option]]:
    faster = [option for option in options if _is_less(option.seconds, seconds)]
    bearable = [option for option in options if option.seconds <= SLOWEST * seconds]
    leaner = [option for option in bearable if _is_less(option.memory, memory)]
    no_fuller = [option for option in faster if not _is_less(memory, option.memory)]
    no_slower = [option for option in leaner if not _is_less(seconds, option.seconds)]
    ranked = (
        ("fastest", faster, _by_time),
        (NO_FULLER, no_fuller, _by_time),
        ("leanest", leaner, _by_memory),
        ("leanest without more time", no_slower, _by_memory),
    )
    for words, among, key in ranked:
        if among:
            yield words, min(among, key=key)


def _is_less(value: float, than: float) -> bool:
    return value < than * (1 - SAME)


def _by_time(option: Option) -> tuple[float, float]:
    return float(f"{option.seconds:.9g}"), option.memory


def _by_memory(option: Option) -> tuple[float, float]:
    return float(f"{option.memory:.9g}"), option.seconds
