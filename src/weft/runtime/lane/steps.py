"""Steps: actions bound to what they read and write.

    wait   until what it reads is here
    run    the action itself: what is timed

A step runs once in each lap of its ring. Knows values; knows neither the program nor where another
device is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from torch import Tensor

from weft.runtime.lane.carried import Carried
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import TENSOR, Structure, Value, spread
from weft.runtime.transport.message import Receive, Send, Values
from weft.runtime.weights.exchange import Exchange
from weft.runtime.weights.gather import Gather
from weft.runtime.weights.groups import ParameterGroup
from weft.runtime.weights.policy import Policy
from weft.runtime.weights.weights import VersionsOf

Loss: TypeAlias = Tensor  # which a device may still compute
OnLoss: TypeAlias = Callable[[int, int, Loss], None]  # of a lap and a number


class Step(Protocol):
    """One action, bound to what it reads and writes."""

    def wait(self, lap: int) -> None: ...

    def run(self, lap: int) -> None: ...


@dataclass(slots=True, eq=False)
class Forward:
    """F: values or data in, values or the loss out."""

    number: int
    _call: Callable[..., Value]  # of the number and the inputs
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    _data: Callable[[int], Value] | None  # by number, where it is the first
    _on_loss: OnLoss | None  # where it is the last
    _versions: VersionsOf | None  # where there are several
    _carried: Sequence[Carried] | None = None  # by each put, where some carry not everything
    widths: Sequence[int] = ()  # tensors that came along each edge
    _returned: Structure = TENSOR  # what it has handed on is part of
    _inputs: Sequence[Value] = ()

    def wait(self, lap: int) -> None:
        if self._data is not None:
            self._inputs = (self._data(self.number),)
            return
        self._inputs = inputs = [Value.unpacked(take()) for take in self._takes]
        self.widths = [len(value.leaves) for value in inputs]

    def run(self, lap: int) -> None:
        inputs, self._inputs = self._inputs, ()
        output = self.compute(lap, inputs)
        if self._on_loss is not None:
            (loss,) = output.leaves
            self.report(lap, loss)
        self.hand_on(output)

    def compute(self, lap: int, inputs: Sequence[Value]) -> Value:
        """What its stage makes of these, with the weights of a lap."""
        if self._versions is None:
            return self._call(self.number, inputs)
        return self._call(self.number, inputs, versions=self._versions(lap))

    def report(self, lap: int, loss: Tensor) -> None:
        if self._on_loss is not None:
            self._on_loss(lap, self.number, _known(loss))

    def hand_on(self, output: Value) -> None:
        """Give every reader what it reads of a value."""
        if self._carried is not None:
            self._returned = output.structure
            for put, carried in zip(self._puts, self._carried, strict=True):
                put(carried.part(output).packed())
        elif self._puts:
            packed = output.packed()
            for put in self._puts:
                put(packed)

    @property
    def is_first(self) -> bool:
        return self._data is not None

    @property
    def is_last(self) -> bool:
        return self._on_loss is not None

    def taken(self) -> Sequence[Value]:
        """What it has waited for, to be run by somebody else."""
        inputs, self._inputs = self._inputs, ()
        return inputs

    def in_place(self, arrived: Sequence[Values]) -> Sequence[Values]:
        """The gradients along each edge, each at the place of its tensor in the output."""
        if self._carried is None:
            return arrived
        pairs = zip(arrived, self._carried, strict=True)
        return [spread(one, self._returned, carried.names) for one, carried in pairs]


@dataclass(slots=True, eq=False)
class Backward:
    """B or I: gradients in, summed over the edges; gradients out, each to its edge."""

    _forward: Forward
    _call: Callable[[int, Values], Values]
    _takes: Sequence[Receive]
    _puts: Sequence[Send]
    _gradients: Values = (None,)

    def wait(self, lap: int) -> None:
        if self._takes:
            self._gradients = summed(self._forward.in_place([take() for take in self._takes]))

    def run(self, lap: int) -> None:
        gradients, self._gradients = self._gradients, (None,)
        passed = self._call(self._forward.number, gradients)
        first = 0  # data have no gradient
        for put, width in zip(self._puts, self._forward.widths, strict=True):
            put(passed[first : first + width])
            first += width


@dataclass(slots=True, eq=False)
class Plain:
    """W, R or ONLOAD: a stage does something with what a microbatch has left in it."""

    _calls: Sequence[Callable[[int], object]]
    _number: int

    def wait(self, lap: int) -> None:
        """Reads what its own stage has saved."""

    def run(self, lap: int) -> None:
        for call in self._calls:
            call(self._number)


@dataclass(slots=True, eq=False)
class Offload:
    """OFFLOAD: what microbatches have left in a stage leaves for the host."""

    _stages: Sequence[Stage]  # its segments
    _numbers: Sequence[int]

    def wait(self, lap: int) -> None:
        """Reads what its own stage has saved."""

    def run(self, lap: int) -> None:
        for number in self._numbers:
            for stage in self._stages:
                stage.offload(number)

    def release(self) -> None:
        """Give back its memory, once it has left."""
        for number in self._numbers:
            for stage in self._stages:
                stage.release(number)


class Releasing:
    """A step before which the memory is given back of what has left for the host by then."""

    __slots__ = ("_offloads", "_step")

    def __init__(self, step: Step, offloads: Sequence[Offload]) -> None:
        self._step, self._offloads = step, offloads

    def wait(self, lap: int) -> None:
        for one in self._offloads:
            one.release()
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)


@dataclass(slots=True, eq=False)
class Sending:
    """A send: what an action has computed leaves for another device."""

    _sends: Sequence[Send]  # one for each microbatch
    _values: list[Values] = field(default_factory=list)

    @property
    def put(self) -> Send:
        """What takes the values, in the order of the microbatches."""
        return self._values.append

    def wait(self, lap: int) -> None:
        """Sent as soon as it is computed."""

    def run(self, lap: int) -> None:
        values, self._values[:] = [*self._values], ()
        for send, one in zip(self._sends, values, strict=True):
            send(one)


@dataclass(slots=True, eq=False)
class Posting:
    """A receive that is launched before its reader asks for it."""

    _posts: Sequence[Callable[[], None]]  # one for each microbatch

    def wait(self, lap: int) -> None:
        """Reads what another device has computed: the transfer waits for it."""

    def run(self, lap: int) -> None:
        for post in self._posts:
            post()


class InGroup:
    """A transfer of a group, which the last of them launches."""

    __slots__ = ("_is_last", "_post", "_step")

    def __init__(self, step: Step, post: Callable[[bool], None], *, is_last: bool) -> None:
        self._step, self._post, self._is_last = step, post, is_last

    def wait(self, lap: int) -> None:
        self._step.wait(lap)

    def run(self, lap: int) -> None:
        self._step.run(lap)
        self._post(self._is_last)


@dataclass(slots=True, eq=False)
class Several:
    """An action that spans microbatches: one after the other."""

    _parts: Sequence[Step]

    def wait(self, lap: int) -> None:
        for part in self._parts:
            part.wait(lap)

    def run(self, lap: int) -> None:
        for part in self._parts:
            part.run(lap)


class OfUpdate:
    """What is done once in an update: `_update` is the one of lap 0, `_updates` are in a lap."""

    def __init__(self, policy: Policy, update: int, updates: int) -> None:
        self._policy, self._first, self._updates = policy, update, updates

    def _update(self, lap: int) -> int | None:
        """Which one it is; None where its gradients are added to those of the next."""
        found = self._policy.origin + lap * self._updates + self._first
        return None if self._policy.is_carried(found) else found


class Closing(OfUpdate):
    """After the last weight gradient of an update: nothing is added to it any more."""

    def __init__(
        self, policy: Policy, update: int, updates: int, groups: Sequence[ParameterGroup]
    ) -> None:
        super().__init__(policy, update, updates)
        self._groups = groups

    def wait(self, lap: int) -> None:
        """Runs right after the action that it follows."""

    def run(self, lap: int) -> None:
        update = self._policy.origin + lap * self._updates + self._first
        is_carried = self._policy.is_carried(update)
        for group in self._groups:
            group.carry(update) if is_carried else group.close(update)


class Reduce(OfUpdate):
    """REDUCE: gradients of all copies in, their sum out."""

    def __init__(
        self, policy: Policy, update: int, updates: int, exchanges: Sequence[Exchange]
    ) -> None:
        super().__init__(policy, update, updates)
        self._exchanges = exchanges

    def offer(self, lap: int) -> None:
        """Send this copy's gradients, if they are there: others may wait for them."""
        update = self._update(lap)
        if update is not None:
            for exchange in self._exchanges:
                exchange.offer(update)

    def wait(self, lap: int) -> None:
        update = self._update(lap)
        if update is not None:
            for exchange in self._exchanges:
                exchange.collect(update)

    def run(self, lap: int) -> None:
        update = self._update(lap)
        if update is not None:
            for exchange in self._exchanges:
                exchange.sum_up(update)


class GatherWeights(OfUpdate):
    """GATHER: the parts of the weights that all copies have updated in, the weights whole out."""

    def __init__(self, policy: Policy, update: int, updates: int, gather: Gather | None) -> None:
        super().__init__(policy, update, updates)
        self._gather = gather

    def offer(self, lap: int) -> None:
        """Send this copy's part, if it is made: others may wait for it."""
        update = self._update(lap)
        if update is not None and self._gather is not None:
            self._gather.offer(update)

    def wait(self, lap: int) -> None:
        update = self._update(lap)
        if update is not None and self._gather is not None:
            self._gather.collect(update)

    def run(self, lap: int) -> None:
        update = self._update(lap)
        if update is not None and self._gather is not None:
            self._gather.write(update)


class Update(OfUpdate):
    """UPDATE: gradients, losses and norms in, the next version of the weights out."""

    def __init__(
        self, policy: Policy, update: int, updates: int, group: ParameterGroup | None
    ) -> None:
        super().__init__(policy, update, updates)
        self._group = group

    def wait(self, lap: int) -> None:
        update = self._update(lap)
        if update is not None and self._group is not None:
            self._policy.verdict(update, self._group.number, self._group.stage)

    def run(self, lap: int) -> None:
        if self._group is not None:
            self._group.apply(self._policy.origin + lap * self._updates + self._first)


def _known(loss: Tensor) -> Loss:
    """A number in its type; a copy, where that waits for nothing: others pin memory."""
    return loss if loss.is_cuda else loss.detach().clone()


def summed(arrived: Sequence[Values]) -> Values:
    """The gradient of a value that several stages read, summed in the order of the edges."""
    if len(arrived) == 1:
        return arrived[0]
    total = list(arrived[0])
    for others in arrived[1:]:
        for index, other in enumerate(others):
            mine = total[index]
            total[index] = other if mine is None else mine if other is None else mine + other
    return total
