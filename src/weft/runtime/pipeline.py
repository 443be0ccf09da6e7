"""Pipeline: a verified program trains the user's modules.

    pipeline = Pipeline(stages, program, loss=loss_fn, optimizer=lambda named: AdamW(...))
    result = pipeline.step(batch, target)

In a process group each rank runs one device; without one, all devices run in this process. Where
the program does not flush, a step is an update, and what it leaves in flight runs with the next
ones; `drain` finishes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import Disagreement, InputError, NonfiniteError, WeftError
from weft.ir.kinds import Kind
from weft.ir.program import Program
from weft.runtime.batch import Data, checksum, cut, weights_of
from weft.runtime.fit import (
    check_fit,
    computed,
    first_step,
    flowing,
    forwards_of,
    is_flowing,
    kind_of,
)
from weft.runtime.flowing import Flight, Flowing, Site, ring_of
from weft.runtime.flushing import Flushing
from weft.runtime.lane.bind import Forward, Setting
from weft.runtime.lane.executor import Executor, Losses
from weft.runtime.ranks.agreement import (
    refuse_different,
    refuse_different_weights,
    structure,
    sums_of_copies,
    sums_of_ends,
)
from weft.runtime.ranks.blame import failure_of
from weft.runtime.ranks.clock import Recording
from weft.runtime.ranks.world import Carrier, World, world_of
from weft.runtime.result import Result
from weft.runtime.stage.locks import Locks, locks_of
from weft.runtime.stage.modules import copied, refuse_unsuited, unshared
from weft.runtime.stage.randomness import Draw
from weft.runtime.stage.shapes import StageForms, is_torchs
from weft.runtime.stage.stage import Stage
from weft.runtime.stage.values import Value
from weft.runtime.transport.loopback import Loopback
from weft.runtime.weights.delay import Delay
from weft.runtime.weights.exchange import Gradients
from weft.runtime.weights.factories import Makers, NamedParameters, Nonfinite
from weft.runtime.weights.policy import Scopes, rules_of
from weft.runtime.weights.staleness import Scope
from weft.runtime.weights.ties import End, ties_of, untie
from weft.timeline import Timeline

Microbatches: TypeAlias = Sequence[Value]


class Pipeline:
    """The stages of a model, run by a program on as many devices as it has.

    loss       loss(output, target) of a microbatch; the step's loss is their weighted sum
    optimizer  makes the optimizer of one stage from its named parameters
    scheduler  makes the learning-rate scheduler of an optimizer; steps once for each update
    clip       the largest norm of the gradients
    clip_by    whose norm: "global", of a "group" of stages that are equally late, or of a "stage";
               the widest that the program has without standing still, which is global unless
               it is asynchronous
    delay      what to do about weights that come late, for asynchronous programs
    seed       of everything random; see `weft.runtime.stage.randomness`
    nonfinite  what to do on all ranks when the loss or the norm is not finite: stop with an
               error, skip the update, or ignore it
    deadline   seconds after which a wait for another rank is an error, from here on; but a first
               step or evaluation, once all ranks have come to it, takes as long as they live
    transport  shared memory on one host and gloo between hosts, or NCCL, or "loopback" for all
               devices in this process; see `weft.runtime.transport`
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        program: Program,
        *,
        loss: Callable[..., Tensor],
        optimizer: Callable[[NamedParameters], Optimizer] | None = None,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        clip: float | None = None,
        clip_by: Scope | None = None,
        delay: Delay | None = None,
        seed: int = 0,
        nonfinite: Nonfinite = "stop",
        deadline: float | None = 60.0,
        transport: Carrier = "auto",
    ) -> None:
        depth = check_fit(stages, program)
        refuse_unsuited(stages, loss)
        flow = flowing(program) if is_flowing(program) else None
        if flow is None and (delay is not None or clip_by not in (None, "global")):
            raise InputError(
                f"{program.name} flushes: its gradients are clipped by their global norm and come"
                f" without delay; leave clip_by and delay out"
            )
        if optimizer is None and (scheduler is not None or flow is not None):
            why = "updates by itself" if flow is not None else "was given a scheduler"
            raise InputError(f"{program.name} {why} and needs an optimizer: give optimizer=")
        delay = delay or Delay()
        program = computed(program) if flow is None else ring_of(flow)
        self._program, self._loss, self._deadline = program, loss, deadline
        self._draw, self._runs, self._is_compared = Draw(seed), 0, False
        ties = ties_of(stages)
        stages, shared = unshared(stages)
        untie(stages, ties)
        self._dtype, self._device = kind_of(stages)
        self._is_closed = False
        self._world: World = world_of(
            program,
            depth=depth,
            carrier=transport,
            device=self._device,
            ties=ties,
            deadline=deadline,
        )
        with self._told():
            self._compare(
                f"{(flow or program).digest} {seed} {structure(stages)}", "program, seed or stages"
            )
            self._copies = self._made(stages)
            self._compare_copies(ties)
            self._forms = StageForms(stages, program.graph, loss, delay.precision)
            self._readers = self._executors(forwards_of(first_step(program)), Stage.infer)
            tied = {end.stage for ends in ties for end in ends}
            self._locks = {
                index: locks_of(
                    flow or program, index, is_shared=index in shared, is_tied=index in tied
                )
                for _, index in self._copies
            }
            makers = Makers(optimizer, scheduler)
            self._flushing = self._flowing = None
            if flow is None:
                self._flushing = Flushing(
                    self._executors(program, Stage.forward),
                    Gradients(program, stages, self._copies, ties, self._world),
                    self._copies,
                    makers,
                    clip=clip,
                    nonfinite=nonfinite,
                )
            else:
                scopes = Scopes(clip, clip_by, nonfinite, delay)
                self._flowing = Flowing(
                    flow,
                    rules_of(flow, stages, ties, self._world, scopes),
                    Site(
                        stages,
                        self._copies,
                        ties,
                        self._world,
                        self._forms,
                        self._draw,
                        self._locks,
                    ),
                    makers,
                    loss=loss,
                    delay=delay,
                    device=self._device,
                )

    def step(
        self,
        batch: Data,
        target: Data,
        *,
        weights: Sequence[float] | None = None,
        update: bool = True,
    ) -> Result:
        """Forward and backward of one batch, and an update unless gradients shall pile up.

        Where the program does not flush, the losses are those of this batch, but its backwards
        and its update may run with the next steps.
        """
        with self._told():
            if self._flowing is not None:
                return self._flowed((batch, target), weights, is_updated=update)
            assert self._flushing is not None
            run = partial(self._stepped, self._flushing.executors, (batch, target), weights)
            result = self._flushing.step(run, self._draw.step + 1, is_updated=update)
            self._world.transport.end()  # gradients of copies, too: this rank may end now
            return result

    def drain(self) -> Flight:
        """Finish what is in flight, with its updates; all stages have as many of them then.

        The next step goes on with weights of the same versions as without a drain; where a
        schedule stashes none, with the newest.
        """
        if self._flowing is None:
            raise InputError(f"{self._program.name} flushes in every step: nothing is in flight")
        with self._told():
            return self._flowing.drain()

    def evaluate(
        self, batch: Data, target: Data, *, weights: Sequence[float] | None = None
    ) -> Result:
        """The loss of a batch in evaluation mode; gradients, buffers and randomness stay.

        Drained first, where the program does not flush: all stages use weights of one version.
        """
        if self._flowing is not None:
            self.drain()
        modes = [(one, one.training) for top in self.modules.values() for one in top.modules()]
        for module in self.modules.values():
            module.eval()
        try:
            with self._told():
                return self._ran(self._readers, (batch, target), weights)
        finally:
            for module, is_training in modes:
                module.training = is_training

    def gathered(self, result: Result | Flight) -> Timeline:
        """The timeline of a step or a flight on all ranks, on the clock of device 0; all ask."""
        local = result.timeline
        both = np.stack([local.start, local.end])
        both[both != 0] += self._world.lag
        total = self._world.total(torch.from_numpy(both), "the timeline").numpy()
        start, end = total - total[0][total[0] != 0].min(initial=np.inf)
        return replace(local, start=start, end=end)

    def close(self) -> None:
        """Leave the other ranks in good order, and close all connections; no step can follow.

        A pipeline that nothing knows any more is closed as well, and at the end of the process.
        """
        if not self._is_closed:
            self._is_closed = True
            self._world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def modules(self) -> dict[tuple[int, int], nn.Module]:
        """The modules that this process trains, by pipe and stage."""
        return {place: stage.module for place, stage in self._copies.items()}

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """Those of the stages that this process trains."""
        mode = self._flushing or self._flowing
        return tuple(mode.optimizers) if mode else ()

    @property
    def norm(self) -> Tensor | None:
        """Of an asynchronous run: the last norm that the first stage here was clipped by."""
        return None if self._flowing is None else self._flowing.norm

    @property
    def copies(self) -> dict[int, int]:
        """How many copies of its weights this process has of each of its stages."""
        if self._flowing is not None:
            return self._flowing.copies
        return dict(Counter(stage for _, stage in self._copies))

    def all_copies(self) -> dict[int, int]:
        """How many copies of its weights each stage has on all ranks together; all ask."""
        shares = self._world.gather(json.dumps(self.copies).encode(), "the copies of the weights")
        found = Counter[int]()
        for share in shares:
            found.update({int(stage): count for stage, count in json.loads(share).items()})
        return dict(sorted(found.items()))

    # building

    def _made(self, stages: Sequence[nn.Module]) -> dict[tuple[int, int], Stage]:
        """The copies that this process holds; the first of each is the user's own module."""
        modules: dict[tuple[int, int], nn.Module] = {}
        for pipe, devices in enumerate(self._program.placement.pipes):
            for index, module in enumerate(stages):
                if devices[index] in self._world.devices:
                    is_first = all((other, index) not in modules for other in range(pipe))
                    modules[pipe, index] = module if is_first else copied(module, index)
        return {place: self._stage(place[1], module) for place, module in modules.items()}

    def _stage(self, index: int, module: nn.Module) -> Stage:
        actions = self._program.actions
        kinds = actions.kind[actions.stage == index]
        made = Stage(
            module,
            self._draw,
            is_first=not self._program.graph.predecessors[index],
            is_split=bool((kinds == Kind.I).any()),
            index=index,
        )
        graph = self._program.graph
        sources = graph.predecessors[index]
        made.has_inputs_alone = (
            all(len(graph.successors[source]) == 1 for source in sources)
            if sources
            else sum(not before for before in graph.predecessors) == 1
        )
        return made

    def _executors(self, program: Program, forward: Forward) -> list[Executor]:
        setting = Setting(program, self._world.transport, self._forms, forward)
        held = program.placement.held
        return [
            Executor(setting, device, {place: self._copies[place] for place in held[device]})
            for device in self._world.devices
        ]

    def _compare(self, known: str, what: str) -> None:
        """Refuse ranks that do not agree."""
        refuse_different(self._world.gather(known.encode(), what), what)

    def _compare_copies(self, ties: Sequence[Sequence[End]]) -> None:
        """Refuse copies of a stage, and ends of a weight, that do not start alike."""
        known = sums_of_ends(self.modules, ties)
        if len(self._program.placement.pipes) > 1:
            known |= sums_of_copies(self.modules)
        share = json.dumps(known).encode()
        refuse_different_weights(self._world.gather(share, "the weights of the copies"))

    # running

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever goes wrong here ends the waits of all other ranks."""
        if self._is_closed:
            raise InputError("this pipeline is closed: make another one to go on")
        try:
            yield
            self._world.end()
        except Disagreement:
            raise  # all ranks raise it
        except NonfiniteError as error:
            if self._flowing is not None:  # other ranks are not there yet
                self._world.fail(self._reason(error))
            raise
        except BaseException as error:
            self._world.fail(self._reason(error))
            raise

    def _reason(self, error: BaseException) -> str:
        return failure_of(error, self._world.devices.start)

    def _ran(
        self,
        executors: Sequence[Executor],
        data: tuple[Data, Data],
        weights: Sequence[float] | None,
    ) -> Result:
        """What these executors make of a batch and its target."""
        program, count = executors[0].program, self._program.microbatches
        inputs, targets = cut(data[0], count, "batch"), cut(data[1], count, "target")
        self._set_loss(targets, weights_of(weights, count))
        self._begin(executors, (inputs, targets))
        recording = Recording(len(program), self._device)
        page, run = self._world.ledger.open(self._runs, count), self._runs
        self._runs += 1
        self._run(executors, recording, partial(self._world.ledger.tell, run))
        return Result(None, False, page, self._world.ledger, recording, program, self._dtype)

    def _stepped(
        self,
        executors: Sequence[Executor],
        data: tuple[Data, Data],
        weights: Sequence[float] | None,
    ) -> Result:
        """The same for training: randomness is another in the next step."""
        result = self._ran(executors, data, weights)
        self._draw.step += 1
        return result

    def _flowed(
        self, data: tuple[Data, Data], weights: Sequence[float] | None, *, is_updated: bool
    ) -> Result:
        """A step of a program that does not flush."""
        assert self._flowing is not None
        if not is_updated:
            raise InputError(
                f"{self._program.name} updates by itself; for larger batches give it more"
                f" microbatches instead of update=False"
            )
        count, run = self._program.microbatches, self._runs
        given = cut(data[0], count, "batch"), cut(data[1], count, "target")
        inputs, targets = ([value.cloned() for value in values] for values in given)
        self._world.begin(self._deadline, "" if run else "first step")
        self._compare_first(inputs, targets)
        self._runs += 1
        page = self._flowing.step(inputs, targets, weights_of(weights, count), run)
        return Result(None, False, page, self._world.ledger, None, self._program, self._dtype)

    def _run(
        self,
        executors: Sequence[Executor],
        recording: Recording,
        tell: Callable[[Losses], None],
    ) -> None:
        """Run every lane that is this process's, and tell the losses."""
        if isinstance(self._world.transport, Loopback):
            _run_in_turn(executors, recording, self._world.transport)
            tell({m: loss for executor in executors for m, loss in executor.losses.items()})
        else:
            executors[0].run(recording, tell)
        self._world.transport.end()

    def _begin(
        self,
        executors: Sequence[Executor],
        data: tuple[Microbatches, Microbatches],
    ) -> None:
        inputs, targets = data
        run = "first evaluation" if executors is self._readers else "first step"
        self._world.begin(self._deadline, "" if executors[0].has_run else run)
        self._compare_first(inputs, targets)
        self._forms.begin(inputs, targets)
        self._begin_stages(is_training=executors is not self._readers)
        for executor in executors:
            executor.begin(inputs)
        self._world.transport.begin(
            [route for executor in executors for route in executor.incoming],
            [route for executor in executors for route in executor.outgoing],
        )

    def _begin_stages(self, *, is_training: bool) -> None:
        for (_, index), stage in self._copies.items():
            locks = self._locks[index]
            stage.begin(locks if is_training else Locks(weights=locks.weights))
            stage.outline(self._forms)

    def _compare_first(self, inputs: Microbatches, targets: Microbatches) -> None:
        """Refuse ranks that were given different data."""
        if not self._is_compared:
            self._compare(checksum([*inputs, *targets]), "the first batch or target")
            self._is_compared = True

    def _set_loss(self, targets: Sequence[Value], shares: tuple[float, ...]) -> None:
        def weighted(output: Any, microbatch: int) -> Tensor:
            wanted = targets[microbatch].to(self._device).arguments
            return self._loss(output, *wanted) * shares[microbatch]

        last = self._program.stages - 1
        for (_, index), stage in self._copies.items():
            stage.loss = weighted if index == last else None
            stage.is_loss_drawing = not is_torchs(self._loss)


def _run_in_turn(executors: Sequence[Executor], recording: Recording, waiting: Loopback) -> None:
    """Every device in turn, as far as it gets, until all have ended."""
    position = [0] * len(executors)
    while any(at < len(one.steps) for at, one in zip(position, executors, strict=True)):
        before = list(position)
        for index, executor in enumerate(executors):
            position[index] = executor.run_ready(recording, position[index], waiting)
        if position == before:
            raise WeftError("the program stands still; verification should tell why")
