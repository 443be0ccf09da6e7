"""Bounds: what no schedule and no cut can do better than, and what order to try candidates in.

A bound leaves out what cannot fit or cannot be faster than what was simulated. An estimate, by the
formula that a schedule claims, decides who is tried first; it ranks nothing.
"""

from __future__ import annotations

import numpy as np

from weft.cost import Share
from weft.errors import InputError
from weft.plan.chain import Chain
from weft.plan.space import Candidate, Division


def least_seconds(chain: Chain, division: Division) -> float:
    """No step of this division is shorter: all work, evenly on all devices, and nothing idle."""
    times = chain.blocks.times
    backward = np.add(times.input_grad, times.weight_grad)
    if times.backward is not None:
        backward = np.minimum(backward, times.backward)
    overlap = min([1.0, *chain.blocks.pairs.values()])
    work = float(np.add(times.forward, backward).sum()) * overlap
    return (division.microbatches * work + sum(times.update)) / division.devices


def least_bytes(chain: Chain, candidate: Candidate) -> float:
    """No plan of a candidate has a lower peak: the mean over devices of what each must hold.

    A stage keeps all of a microbatch when its backward begins, also where it is recomputed or comes
    back from the host; `chain` is one with selective recompute where that may be chosen. A schedule
    may cut microbatches in two, or share optimizer state between its pipes.
    """
    memory, shape, pipes = chain.blocks.memory, candidate.shape, candidate.pipes
    state = pipes * (sum(memory.weights) + sum(memory.gradients)) + sum(memory.optimizer)
    return (state + sum(memory.saved) / (2 * shape.stages_per_device)) / shape.devices


def claimed_seconds(chain: Chain, candidate: Candidate) -> float:
    """What a schedule claims for even stages without messages, where its claim holds; else 0."""
    shape, claims = candidate.shape, candidate.schedule.claims
    share = _share(chain, candidate)
    if chain.blocks.pairs or claims.measure != "wall" or not claims.holds(shape, share):
        return 0.0
    return claims.seconds(shape, share)


def estimated_seconds(chain: Chain, candidate: Candidate) -> float:
    """About how long a step takes, by the formula of its schedule."""
    shape, times, memory = candidate.shape, chain.blocks.times, chain.blocks.memory
    devices, share, claims = shape.devices, _share(chain, candidate), candidate.schedule.claims
    try:
        seconds = claims.seconds(shape, share)
        held = max(claims.peak(shape, device) for device in (0, devices - 1))
    except (InputError, ZeroDivisionError):
        return float("inf")
    state = (sum(memory.weights) + sum(memory.gradients) + sum(memory.optimizer)) / devices
    if state * candidate.pipes + held * sum(memory.saved) / devices > memory.capacity:
        seconds += shape.microbatches * share.forward
    network = chain.blocks.network
    size = float(network.sizes(chain.blocks.stages - 1).max(initial=0.0))
    hop = network.default.latency + network.default.seconds(size)
    tail = (sum(times.update) + sum(times.reduce)) / devices
    return seconds + tail + 2 * (shape.stages - 1) * hop


def _share(chain: Chain, candidate: Candidate) -> Share:
    """What an even device does for one microbatch."""
    times, devices = chain.blocks.times, candidate.shape.devices
    columns = (times.forward, times.input_grad, times.weight_grad)
    return Share(*(sum(column) / devices for column in columns))
