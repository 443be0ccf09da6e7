"""List order: in every slot, each device runs the first of its actions that are ready."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from weft.errors import ProgramError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.schedules.kit.slots import Constraints, activations, constraints, in_slots

Rank: TypeAlias = tuple[bool, int, int, int]  # the last is the action itself


def list_order(program: Program, *, peak: int) -> Program:
    """The same actions in list order, with at most `peak` microbatches held on a device.

    Backwards come first, then the oldest microbatch, then the deepest stage. No device is idle
    while the first of its ready actions fits.
    """
    tied, ranks = constraints(program), _ranks(program)
    queues: list[list[Rank]] = [[] for _ in range(program.devices)]
    room = [activations(program, peak)] * program.devices
    waits = [len(reads) for reads in tied.reads]
    ready = [action for action, wait in enumerate(waits) if not wait]
    slots: dict[int, int] = {}
    for slot in count():
        for action in ready:
            heappush(queues[tied.device[action]], ranks[action])
        running = _first_of_each(queues, room, tied)
        if not running:
            break
        slots.update((action, slot) for action in running)
        ready = _made_ready(running, waits, tied)
    if len(slots) < len(program):
        raise ProgramError([f"{program.name} has no list order within {peak} microbatches"])
    return in_slots(program, [slots[action] for action in range(len(program))])


def _ranks(program: Program) -> list[Rank]:
    actions = program.actions
    is_forward = (actions.kind == Kind.F).tolist()
    microbatch, depth = actions.microbatch.tolist(), (-actions.stage).tolist()
    return list(zip(is_forward, microbatch, depth, range(len(actions)), strict=True))


def _first_of_each(queues: list[list[Rank]], room: list[int], tied: Constraints) -> list[int]:
    """What the devices run in a slot; it leaves the queues and takes or gives back room."""
    running = []
    for device, queue in enumerate(queues):
        if queue and tied.holds[queue[0][-1]] <= room[device]:
            action = heappop(queue)[-1]
            room[device] -= tied.holds[action]
            running.append(action)
    return running


def _made_ready(running: list[int], waits: list[int], tied: Constraints) -> list[int]:
    """The actions that waited for nothing but these."""
    ready = []
    for reader in (reader for action in running for reader in tied.readers[action]):
        waits[reader] -= 1
        if not waits[reader]:
            ready.append(reader)
    return ready
