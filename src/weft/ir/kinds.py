"""The words of the instruction set: kinds of action, streams, segments of a layer."""

from __future__ import annotations

from enum import Enum, IntEnum


class Kind(IntEnum):
    """What an action does; the order is the order in the packed columns."""

    F = 0  # forward
    B = 1  # whole backward: I and W in one
    I = 2  # input gradient
    W = 3  # weight gradient
    R = 4  # recompute: the forward again, from the stored input
    SEND_ACTIVATION = 5
    RECV_ACTIVATION = 6
    SEND_GRADIENT = 7
    RECV_GRADIENT = 8
    OFFLOAD = 9  # saved state, device -> host
    ONLOAD = 10  # saved state, host -> device
    REDUCE = 11  # sum of gradients over copies of a stage, or over the ends of a tied weight
    UPDATE = 12  # optimizer step: version v -> v + 1
    FREE = 13  # a weight version is dropped
    GATHER = 14  # new weights from all copies of a stage, each of which has updated its share

    __hash__ = int.__hash__  # it equals its number; and as a key it is looked up all the time

    @property
    def is_compute(self) -> bool:
        """Whether it keeps the compute stream busy: forward, backward, recompute."""
        return self <= Kind.R

    @property
    def is_wire(self) -> bool:
        """Whether it is one end of a message."""
        return Kind.SEND_ACTIVATION <= self <= Kind.RECV_GRADIENT

    @property
    def has_microbatch(self) -> bool:
        """Whether the action belongs to a microbatch; the others name pipe, stage and version."""
        return self <= Kind.ONLOAD


# Which end of its edge (source 0, destination 1) a send or receive stands at.
EDGE_END: dict[int, int] = {
    Kind.SEND_ACTIVATION: 0,
    Kind.RECV_ACTIVATION: 1,
    Kind.SEND_GRADIENT: 1,
    Kind.RECV_GRADIENT: 0,
}


class Stream(Enum):
    """One of a device's in-order queues."""

    COMPUTE = "compute"
    EXPERTS = "experts"
    WIRE = "wire"
    OFFLOAD = "offload"
    ONLOAD = "onload"
    REDUCE = "reduce"


class Direction(Enum):
    """What a channel carries: activations downstream, gradients upstream, or both in one order."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    BOTH = "both"  # as torch's messages between two ranks travel, which carry no name


class Part(IntEnum):
    """The parts of a layer, in forward order; segment = layer * 4 + part."""

    ATTENTION = 0
    DISPATCH = 1
    EXPERTS = 2
    COMBINE = 3


class Layer(Enum):
    """What a layer of a stage is cut into; numbers of parts that it does not have are left out."""

    EXPERTS = tuple(Part)
    DENSE = (Part.ATTENTION, Part.EXPERTS)  # attention and a perceptron: nothing is exchanged
    PLAIN = (Part.EXPERTS,)  # one computation, such as a head


def segment(layer: int, part: Part) -> int:
    """The position of a part of a layer in a stage's forward order."""
    return layer * len(Part) + part
