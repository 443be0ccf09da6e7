"""Shape: how many devices, microbatches and stages a schedule is asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from weft.errors import InputError
from weft.ir.graph import Graph
from weft.ir.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a schedule is a function of.

    stages_per_device  counted per pipe
    pipes              pipelines per direction, for bidirectional schedules
    updates            optimizer steps of a run, for asynchronous schedules
    round              microbatches that pass one group of stages before the next (WPipe)
    graph, placement   set where the stages are not a chain
    """

    devices: int
    microbatches: int
    stages_per_device: int = 1
    pipes: int = 1
    updates: int = 4
    round: int = 0
    variant: str = ""
    graph: Graph | None = None
    placement: Placement | None = None

    def __post_init__(self) -> None:
        for name in ("devices", "microbatches", "stages_per_device", "pipes", "updates"):
            if getattr(self, name) < 1:
                word = name.replace("_", " ")
                raise InputError(f"{word} must be at least 1, not {getattr(self, name)}")

    @classmethod
    def of_graph(cls, graph: Graph, placement: Placement | None = None, **others: object) -> Shape:
        """The shape of a graph of stages, each on its own device unless placed."""
        devices = placement.devices if placement else len(graph)
        return cls(devices=devices, graph=graph, placement=placement, **others)  # type: ignore[arg-type]

    @property
    def stages(self) -> int:
        """Stages of a pipe, on all devices together."""
        return len(self.graph) if self.graph else self.devices * self.stages_per_device

    def but(self, **changes: object) -> Shape:
        """This shape with some of it changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def changes_to(self, other: Shape) -> str:
        """What to change to get from this shape to the other, in words."""
        changed = [
            item.name
            for item in fields(self)
            if getattr(self, item.name) != getattr(other, item.name)
        ]
        return ", ".join(dict.fromkeys(_words(other, name) for name in changed))


def count(number: int, words: str) -> str:
    """`2 stages per device`, `1 stage per device`."""
    first, _, rest = words.partition(" ")
    one = first.removesuffix("es") if first.endswith("ches") else first.removesuffix("s")
    return f"{number} {one if number == 1 else first} {rest}".rstrip()


def _words(shape: Shape, name: str) -> str:
    match name:
        case "variant":
            return f"variant {shape.variant}" if shape.variant else "no variant"
        case "round":
            return f"rounds of {shape.round}" if shape.round else "no round"
        case "graph" | "placement":
            return "no graph"
        case _:
            return count(getattr(shape, name), name.replace("_", " "))
