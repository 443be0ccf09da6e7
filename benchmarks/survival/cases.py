"""Cases: what happens to which rank, when, over which transport and schedule, drawn by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from weft.ir.program import Program
from weft.lower import replicated
from weft.schedules import REGISTRY, Shape

MICROBATCHES = 4
STEPS = 3  # of the phase "steps"
READER = -1  # stands for the rank of a process that reads the last save

KINDS = ("kill", "stop", "raise", "exit", "end")
BETWEEN_HOSTS = (*KINDS, "cut")
TRANSPORTS = ("shared", "gloo", "hosts")

# How many ranks a schedule may have here; those with copies of stages need an even number.
SYNCHRONOUS = {
    "gpipe": (2, 3),
    "1f1b": (2, 3),
    "eager-1f1b": (2, 3),
    "interleaved-1f1b": (2,),
    "looped-bfs": (2, 3),
    "chimera": (2, 4),
    "zb-h1": (2, 3),
    "zbv": (2, 3),
    "hanayo": (2,),
    "dualpipe": (2,),
    "dualpipev": (2,),
    "kimi-k2": (2,),
}
ASYNCHRONOUS = {"naive-async": (2, 3), "pipedream": (2, 3), "pipedream-2bw": (2, 3), "wpipe": (2,)}
SCHEDULES = SYNCHRONOUS | ASYNCHRONOUS

# About how many moments a phase has: calls of the user's code, of any function of Weft, and
# milliseconds.
MOMENTS = {
    "start-up": {"user": 8, "weft": 1500, "clock": 150},
    "connecting": {"weft": 450},
    "steps": {"user": 45, "weft": 4000, "clock": 150},
    "evaluation": {"user": 20, "weft": 2500, "clock": 80},
    "drain": {"user": 6, "weft": 1200, "clock": 30},
    "save": {"weft": 500, "clock": 25},
    "exit": {"weft": 40},
}
SKEW = {"user": 1, "weft": 2, "clock": 1}  # of Weft's calls early ones are drawn more often
ROWS = (1, 1, 1, 1 << 15)  # of a microbatch: most of them small, some of a MB
REPLICAS = (1, 1, 1, 1, 1, 2)
IN_ANY_THREAD = ("kill", "stop", "end", "cut")  # what a clock may do


class Case(NamedTuple):
    """What happens to a rank: at which moment of which phase.

    kind      kill (SIGKILL), stop (SIGSTOP), raise, exit (sys.exit), end (os._exit), or cut: the
              link between two hosts
    place     a moment is: "user": a call of the user's code; "weft": of any function of Weft;
              "clock": a millisecond
    moment    how many come before; where the phase has fewer, it happens at its end
    deadline  seconds, of the pipeline
    rows      of a microbatch
    replicas  of the pipeline, each on devices of its own
    """

    seed: int
    number: int
    kind: str
    phase: str
    place: str
    moment: int
    victim: int
    schedule: str
    ranks: int
    transport: str
    deadline: float
    rows: int = 1
    replicas: int = 1

    @property
    def program(self) -> Program:
        devices = self.ranks // self.replicas
        least, most = REGISTRY[self.schedule].stages_per_device
        shape = Shape(
            devices=devices,
            microbatches=max(MICROBATCHES, 2 * devices),
            stages_per_device=least if most else 2,
        )
        program = REGISTRY[self.schedule].program(shape)
        return replicated(program, self.replicas) if self.replicas > 1 else program

    @property
    def hosts(self) -> int:
        return 2 if self.transport == "hosts" else 1

    def host(self, rank: int) -> int:
        """Where a rank is: the first half of them on the first host."""
        return rank * self.hosts // self.ranks

    def __str__(self) -> str:
        what = f"{self.kind} of {self.victim} in {self.phase} ({self.place} {self.moment})"
        pipeline = f"{self.replicas} x {self.schedule}" if self.replicas > 1 else self.schedule
        where = f"{pipeline} on {self.ranks} ranks over {self.transport}"
        return f"{self.seed}:{self.number} {what}, {where}"


def case_of(
    seed: int, number: int, transports: Sequence[str], phases: Sequence[str], deadline: float
) -> Case:
    """The same for the same numbers: transports and kinds in turn, the rest by chance."""
    chance = random.Random(f"{seed} {number}")
    transport = transports[number % len(transports)]
    kinds = BETWEEN_HOSTS if transport == "hosts" else KINDS
    kind = kinds[number // len(transports) % len(kinds)]
    phase = chance.choice(phases)
    schedule, allowed = chance.choice([*(ASYNCHRONOUS if phase == "drain" else SCHEDULES).items()])
    devices, replicas = chance.choice(allowed), chance.choice(REPLICAS)
    if replicas > 1:
        devices = allowed[0]
    ranks = devices * replicas
    places = [one for one in MOMENTS[phase] if one != "clock" or kind in IN_ANY_THREAD]
    place = chance.choice(places)
    return Case(
        seed=seed,
        number=number,
        kind=kind,
        phase=phase,
        place=place,
        moment=int(MOMENTS[phase][place] * chance.random() ** SKEW[place]),
        victim=chance.randrange(ranks),
        schedule=schedule,
        ranks=ranks,
        transport=transport,
        deadline=deadline,
        rows=chance.choice(ROWS),
        replicas=replicas,
    )
