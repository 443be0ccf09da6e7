"""TimedUpdates: what is done with the gradients of a step, by the parts that a run does it with.

    close    gradients are taken, and measured where nothing sums them, or laid out to be sent
    REDUCE   gradients of all copies, once they are here, are summed and handed out
    UPDATE   gradients are clipped, and the optimizer steps

As in a recorded run, waiting for another rank belongs to none of them: gradients on their way
are messages, which take what the link says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.ir.program import Program
from weft.ir.versions import resident_versions
from weft.lower.sums import learns
from weft.runtime.profile.memory import state_bytes
from weft.runtime.profile.sample import Sample, seconds
from weft.runtime.ranks.world import World
from weft.runtime.weights.exchange import Exchange
from weft.runtime.weights.options import Factories, Updating
from weft.runtime.weights.versions import Stash
from weft.runtime.weights.weights import Model, Weights


class TimedUpdates:
    """The weights of a process, updated once in every round, all ranks together.

    `modules` has one copy of each stage that this process holds.
    """

    def __init__(
        self, stages: Sequence[nn.Module], program: Program, sample: Sample, world: World
    ) -> None:
        held = [place for device in world.devices for place in program.placement.held[device]]
        self._copies = {(pipe, stage): copy.deepcopy(stages[stage]) for pipe, stage in held}
        self._pipe = {stage: pipe for pipe, stage in reversed(held)}  # whose copy is run
        self._learning = {stage for stage in self._pipe if learns(program, stage)}
        self._world, self._update = world, 0
        self._thread = ThreadPoolExecutor(1)
        self._weights = Weights(
            program,
            program.microbatches,
            Model(stages, (), resident_versions(program), self._copies),
            Updating(factories=Factories(sample.optimizer), clip=sample.clip, nonfinite="ignore"),
            tuple((stage,) for stage in range(program.stages)) if sample.clip is not None else (),
            world,
        )

    @property
    def modules(self) -> dict[int, nn.Module]:
        return {stage: self._copies[pipe, stage] for stage, pipe in sorted(self._pipe.items())}

    def stashes(self, stage: int) -> list[Stash]:
        """Of the weights of that copy."""
        return self._weights.stashes(self._pipe[stage], stage)

    def state_bytes(self, stage: int) -> int:
        """What the optimizer of that copy remembers."""
        groups = self._weights.groups[self._pipe[stage], stage]
        return sum(state_bytes(one.optimizer) for one in groups if one.optimizer is not None)

    def run(self) -> dict[int, dict[str, list[float]]]:
        """Seconds by stage and by field of Times; every rank calls this."""
        found: dict[int, dict[str, list[float]]] = {stage: {} for stage in self.modules}
        self._zero()
        for stage, timed in found.items():
            timed["close"] = [self._seconds(stage, partial(self._close, stage))]
        self._world.transport.begin((), ())
        for stage, timed in found.items():
            exchange = self._weights.exchange(0, stage, None)
            if exchange is not None and stage in self._learning:
                lay_out, timed["reduce"] = self._beside(self._reduce, stage, exchange)
                timed["close"][0] += lay_out
        self._world.transport.end()
        for stage, timed in found.items():
            timed |= self._apply(stage)
        self._weights.give_up()
        self._update += 1
        self._weights.policy.forget(self._update)
        return found

    def _zero(self) -> None:
        """So that steps change nothing."""
        for module in self._copies.values():
            for weight in module.parameters():
                if weight.grad is not None:
                    weight.grad.zero_()

    def _close(self, stage: int) -> None:
        for (_, held), groups in self._weights.groups.items():
            for group in groups if held == stage else ():
                group.close(self._update)

    def _reduce(self, stage: int, exchange: Exchange) -> tuple[float, list[float]]:
        """Seconds of laying gradients out, and of summing them once all are here."""
        lay_out = self._seconds(stage, partial(exchange.laid_out, self._update))
        exchange.collect(self._update)
        return lay_out, [self._seconds(stage, partial(exchange.sum_up, self._update))]

    def _beside(self, call: Callable[..., Any], *words: object) -> Any:
        """Call on the thread that a run has for it: memory is allocated there as in a run."""
        if self._world.carrier == "loopback":
            return call(*words)
        return self._thread.submit(call, *words).result()

    def _apply(self, stage: int) -> dict[str, list[float]]:
        group = self._weights.group(self._pipe[stage], stage, None)
        if group is None or group.optimizer is None:
            return {}
        self._weights.policy.verdict(self._update, group.number, group.stage)
        return {"update": [self._seconds(stage, lambda: group.apply(self._update))]}

    def _seconds(self, stage: int, call: Callable[[], object]) -> float:
        weights = self.modules[stage].parameters()
        return seconds(next((w.device for w in weights), torch.device("cpu")), call)
