"""Every way to pair neighbours at the ends of Kimi K2's order, D = 4, K = 2, N = 8: the proof
behind docs/decisions/paired-ends.md.

    .venv/bin/python benchmarks/paired_ends/search.py

First all pairings of the four warm-ups, with cool-downs unpaired; of their ends of the steady
state, those that no other dominates. Then each of these with all pairings of the cool-downs. A
later start never makes anything earlier, so that nothing better is left out. Takes some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from multiprocessing import Pool
from typing import NamedTuple

D, K, N = 4, 2, 8
STAGES, ITEMS = D * K, N * K
WARMUPS = [2 * (D - 1 - device) + (K - 1) * D + 1 for device in range(D)]


class Costs(NamedTuple):
    """Seconds of a stage: a forward, a backward, the W behind it, and their pairs."""

    forward: float
    backward: float
    weight: float
    both: float
    forwards: float
    backwards: float


ORDERS = {
    "pairs of F and B": Costs(1.5, 2.5, 0.0, 3.0, 2.0, 4.0),
    "pairs of F and I, then W": Costs(1.5, 1.5, 1.0, 2.0, 2.0, 2.0),
}

Slot = tuple[float, float, tuple[tuple[int, int], ...]]  # seconds, then W, and its actions
Pairing = tuple[int, ...]  # for each slot at an end, 1 or 2 actions


def pairings(items: int) -> Iterator[Pairing]:
    """All ways to run so many neighbours alone or two by two."""
    if items == 0:
        yield ()
    for size in range(1, min(2, items) + 1):
        for rest in pairings(items - size):
            yield (size, *rest)


def items_of(device: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(forward action, its microbatch) in order, and the same backward; F of s is s, B is s + S."""
    order = [(c, g * D + m) for g in range(N // D) for c in range(K) for m in range(D)]
    forward = [(c * D + device, m) for c, m in order]
    return forward, [(STAGES + (K - 1 - c) * D + device, m) for c, m in order]


def lane(device: int, warmup: Pairing, cooldown: Pairing, costs: Costs) -> tuple[list[Slot], int]:
    """The slots of a device, and how many of them end with the steady state."""
    forward, backward = items_of(device)
    slots: list[Slot] = []
    place = 0
    for size in warmup:
        seconds = costs.forward if size == 1 else costs.forwards
        slots.append((seconds, 0.0, tuple(forward[place : place + size])))
        place += size
    steady = ITEMS - place
    for turn in range(steady):
        slots.append((costs.both, costs.weight, (forward[place + turn], backward[turn])))
    cut, place = len(slots), steady
    for size in cooldown:
        seconds = costs.backward if size == 1 else costs.backwards
        slots.append((seconds, size * costs.weight, tuple(backward[place : place + size])))
        place += size
    return slots, cut


def run(lanes: list[tuple[list[Slot], int]]) -> tuple[float, tuple[float, ...]]:
    """The makespan, and when each device's steady state ends; infinity for a deadlock."""
    ends: dict[tuple[int, int], float] = {}
    clock, place, steady = [0.0] * D, [0] * D, [0.0] * D
    moved = True
    while moved:
        moved = False
        for device, (slots, cut) in enumerate(lanes):
            while place[device] < len(slots):
                seconds, behind, actions = slots[place[device]]
                start = clock[device]
                for action, microbatch in actions:
                    for other in reads(action):
                        start = max(start, ends.get((other, microbatch), float("inf")))
                if start == float("inf"):
                    break
                for action in actions:
                    ends[action] = start + seconds
                clock[device] = start + seconds + behind
                place[device] += 1
                moved = True
                if place[device] == cut:
                    steady[device] = clock[device]
    is_done = all(p == len(slots) for p, (slots, _) in zip(place, lanes, strict=True))
    return (max(clock) if is_done else float("inf")), tuple(steady)


READS = [
    (action - 1,) if 0 < action < STAGES
    else () if action == 0
    else (action - STAGES,) if action == 2 * STAGES - 1
    else (action - STAGES, action + 1)
    for action in range(2 * STAGES)
]  # fmt: skip


def reads(action: int) -> tuple[int, ...]:
    return READS[action]


Found = tuple[float, tuple[float, ...], tuple[Pairing, ...]]


def best_of(
    first: Pairing, *, costs: Costs, warmups: tuple[Pairing, ...] | None
) -> dict[tuple[float, ...], Found]:
    """All pairings in which device 0's is `first`: by the ends of the steady state, the best."""
    found: dict[tuple[float, ...], Found] = {}
    for others in product(*(list(pairings(items)) for items in WARMUPS[1:])):
        chosen = (first, *others)
        alone = tuple((1,) * items for items in WARMUPS)
        opening, closing = (chosen, alone) if warmups is None else (warmups, chosen)
        lanes = [lane(d, opening[d], closing[d], costs) for d in range(D)]
        makespan, steady = run(lanes)
        if makespan < found.get(steady, (float("inf"),))[0]:
            found[steady] = (makespan, steady, chosen)
    return found


def search(costs: Costs, pool: Pool) -> tuple[float, float, int]:  # type: ignore[valid-type]
    """Unpaired and best makespan, and how many warm-ups none dominates."""
    alone = tuple((1,) * items for items in WARMUPS)
    unpaired, _ = run([lane(d, alone[d], alone[d], costs) for d in range(D)])
    firsts = list(pairings(WARMUPS[0]))
    found: dict[tuple[float, ...], Found] = {}
    for part in pool.imap_unordered(partial(best_of, costs=costs, warmups=None), firsts):  # type: ignore[attr-defined]
        found |= {key: value for key, value in part.items() if key not in found}
    front = [
        entry
        for key, entry in found.items()
        if not any(o != key and all(a <= b for a, b in zip(o, key, strict=True)) for o in found)
    ]
    best = unpaired
    for _, _, warmups in front:
        job = partial(best_of, costs=costs, warmups=warmups)
        for part in pool.imap_unordered(job, firsts):  # type: ignore[attr-defined]
            best = min([best, *(entry[0] for entry in part.values())])
    return unpaired, best, len(front)


def main() -> None:
    counts = [sum(1 for _ in pairings(items)) for items in WARMUPS]
    print(f"pairings of each device: {counts}", flush=True)
    with Pool() as pool:
        for name, costs in ORDERS.items():
            unpaired, best, front = search(costs, pool)
            print(f"{name}: unpaired {unpaired}, best {best} ({front} warm-ups undominated)")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
