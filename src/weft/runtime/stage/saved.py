"""What a forward keeps until its backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from weft.runtime.stage.buffers import Snapshot
from weft.runtime.stage.cast import Cast
from weft.runtime.stage.deferred import Tape
from weft.runtime.stage.graphs import Root
from weft.runtime.stage.offload import HeldTensors
from weft.runtime.stage.seeds import Drawn
from weft.runtime.stage.values import Value
from weft.runtime.stage.versioned import StashVersions


@dataclass(slots=True)
class Saved:
    """What a forward keeps: its inputs, and its outputs with their graph unless recomputed."""

    values: Sequence[Value]
    outputs: Sequence[Root] = ()
    tape: Tape | None = None  # of layers that defer their weight gradients
    versions: StashVersions = ()  # of the weights
    drawn: Drawn | None = None
    buffers: Snapshot | None = None  # as they were, where the forward runs again
    cast: Cast | None = None
    prints: Sequence[float] = ()  # of the outputs, for as long as forwards are watched
    gradients: Sequence[tuple[nn.Parameter, Tensor]] = ()  # of weights, between the halves
    held: HeldTensors | None = None  # what can be moved to the host
    arrived: dict[int, Tensor] | None = (
        None  # gradients of inputs, where they are to be as they are
    )

    def listen(self) -> None:
        """Keep the gradients of inputs as they come: torch lays out `.grad` as its tensor is."""
        self.arrived = {}
        for index, leaf in enumerate(self.inputs):
            if leaf.requires_grad:
                leaf.register_hook(partial(self.arrived.__setitem__, index))  # type: ignore[no-untyped-call]

    def for_weights(self) -> Iterator[Tensor]:
        """What the gradients of weights are made of, between the halves of a backward."""
        yield from (gradient for _, gradient in self.gradients)
        for _, value, gradient in () if self.tape is None else self.tape.uses:
            yield from (value, gradient)

    @property
    def inputs(self) -> list[Tensor]:
        return [leaf for value in self.values for leaf in value.leaves]
