"""Steps: actions bound to what they read and write.

    receive   wait for what other devices send
    run       the action itself: what is timed
    send      hand on what it computed

Knows values; knows neither the program nor where another device is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from torch import Tensor

from weft.runtime.stage.values import Value
from weft.runtime.transport.message import Receive, Send, Values

Loss: TypeAlias = Tensor | float  # a tensor as long as a device may still compute it
Inputs: TypeAlias = dict[int, Value]


class Step(Protocol):
    """One action, bound to what it reads and writes."""

    def receive(self) -> None: ...

    def run(self) -> None: ...

    def send(self) -> None: ...


@dataclass(slots=True)
class Batch:
    """What a run begins and ends with, by microbatch."""

    inputs: Inputs = field(default_factory=dict)  # of the first stages
    losses: dict[int, Loss] = field(default_factory=dict)  # of the last ones


@dataclass(slots=True, eq=False)
class Forward:
    """F: values and data in, values or the loss out."""

    microbatch: int
    _run: Callable[[int, Sequence[Value]], Value]
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    _batch: Batch
    _is_first: bool
    _is_last: bool
    widths: Sequence[int] = ()  # tensors that came along each edge
    _inputs: Sequence[Value] = ()
    _output: Value | None = None

    def receive(self) -> None:
        if self._is_first:
            self._inputs = [self._batch.inputs[self.microbatch]]
            return
        self._inputs = [Value.unpacked(take()) for take in self._takes]
        self.widths = [len(value.leaves) for value in self._inputs]

    def run(self) -> None:
        self._output = self._run(self.microbatch, self._inputs)
        self._inputs = ()

    def send(self) -> None:
        output, self._output = self._output, None
        assert output is not None
        if self._is_last:
            (loss,) = output.leaves  # a number, where that waits for nothing: tensors pin memory
            self._batch.losses[self.microbatch] = loss if loss.is_cuda else loss.item()
        for put in self._puts:
            put(output.packed())


@dataclass(slots=True, eq=False)
class Backward:
    """B or I: gradients in, summed over the edges; gradients out, each to its edge."""

    _forward: Forward
    _run: Callable[[int, Values], Values]
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    _gradients: Values = (None,)
    _passed: Values = ()

    def receive(self) -> None:
        if self._takes:
            self._gradients = _summed([take() for take in self._takes])

    def run(self) -> None:
        self._passed = self._run(self._forward.microbatch, self._gradients)
        self._gradients = (None,)

    def send(self) -> None:
        passed, self._passed = self._passed, ()
        first = 0  # data have no gradient
        for put, width in zip(self._puts, self._forward.widths, strict=True):
            put(passed[first : first + width])
            first += width


@dataclass(slots=True, eq=False)
class Plain:
    """W or R: nothing comes and nothing goes."""

    _run: Callable[[int], None]
    _microbatch: int

    def receive(self) -> None:
        """Reads what its own stage has saved."""

    def run(self) -> None:
        self._run(self._microbatch)

    def send(self) -> None:
        """Writes to its own stage."""


@dataclass(slots=True, eq=False)
class Several:
    """An action that spans microbatches: one after the other."""

    _parts: Sequence[Step]

    def receive(self) -> None:
        for part in self._parts:
            part.receive()

    def run(self) -> None:
        for part in self._parts:
            part.run()

    def send(self) -> None:
        for part in self._parts:
            part.send()


def _summed(arrived: Sequence[Values]) -> Values:
    """The gradient of a value that several stages read, summed in the order of the edges."""
    if len(arrived) == 1:
        return arrived[0]
    total = list(arrived[0])
    for others in arrived[1:]:
        for index, other in enumerate(others):
            mine = total[index]
            total[index] = other if mine is None else mine if other is None else mine + other
    return total
