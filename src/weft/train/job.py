"""A training job: a program trains a small model on a text or tokens, step by step, watched.

    Settings ──> trained  ──> Outcome    in one process, or on every rank of a process group
             ├─> measured ──> Cost       what its program costs there
             └─> checked  ──> losses     the same job on the reference, with no pipeline at all

Prints nothing and starts no process; writes what it saves, and nothing else.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.request import Saving
from weft.runtime import Reference
from weft.runtime.profile import BRIEF, THOROUGH
from weft.runtime.reference.versions import Method, method_of, restarted
from weft.runtime.suit import is_asynchronous
from weft.runtime.weights.staleness import scoped
from weft.train.experts import emulated, expert_ranks
from weft.train.keeper import FolderKeeper, Keeper, NoKeeper
from weft.train.outcome import Outcome, Watch
from weft.train.runner import Runner, runner_of
from weft.train.settings import Settings
from weft.train.signals import heeding, noted
from weft.train.stopping import Stopping
from weft.train.tensor import mesh_of
from weft.train.workload import Measuring, Workload

NEVER = Saving()
OFTEN = 30.0  # seconds between two outcomes of a run that goes on


def trained(
    settings: Settings,
    watch: Watch = lambda news: None,
    *,
    cost: Cost | None = None,
    saves: Path | None = None,
    saving: Saving = NEVER,
) -> Outcome:
    """Train; in a process group every rank calls this, and all get the same outcome.

    Without a cost to predict with, the stages are first measured, briefly. SIGTERM and SIGINT, to
    any rank, end the run after the step that is under way. With a folder for saves, a run that
    ends early is saved there.
    """
    _check_switches(settings)
    job = Workload(settings, expert_ranks(settings), mesh_of(settings))
    runner = runner_of(job, job.program, cost or job.profiled(BRIEF), watch)
    with runner.pipeline as pipeline:
        if saves is None:
            keeper: Keeper = NoKeeper()
        else:
            keeper = FolderKeeper(pipeline, settings, saves, saving, watch)
        runner.after = keeper.resume()
        watch(runner.outcome)
        ended_by = _run(runner, keeper, watch, last=last_step(settings, saving))
    keeper.look()
    return replace(runner.outcome, ended_by=ended_by)


def last_step(settings: Settings, saving: Saving) -> int:
    """The step after which a run ends; InputError where that is said to be early and is none."""
    if (stop := saving.stop_after) is not None and stop > settings.steps:
        raise InputError(
            f"--stop-after {stop}: the run ends after its {settings.steps} steps; give fewer than"
            f" that, more --steps, or leave it out"
        )
    return min(settings.steps, saving.stop_after or settings.steps)


def _run(runner: Runner, keeper: Keeper, watch: Watch, *, last: int) -> int | None:
    """Take steps up to the last; the signal that ends them earlier."""
    with heeding() as request:
        request.pass_on = noted
        stopping, step, shown = Stopping(request, known=runner.known), runner.after, -math.inf
        while step < last and not stopping.is_before(step):
            runner.step(step)
            step += 1
            if keeper.is_due(step):
                _save(runner, keeper, watch, step)
            elif time.monotonic() > shown + OFTEN:
                watch(runner.outcome)
                shown = time.monotonic()
            keeper.look()
        if keeper.is_due_at_end(step):
            _save(runner, keeper, watch, step)
        runner.land()
        watch(runner.outcome)
    return stopping.number if step < last else None


def _save(runner: Runner, keeper: Keeper, watch: Watch, step: int) -> None:
    runner.land()
    watch(runner.outcome)  # so that a run that is complete has its figures
    keeper.save(step)


def _check_switches(settings: Settings) -> None:
    if settings.switch_after >= settings.steps:
        raise InputError(
            f"all {settings.steps} steps are synchronous; lower --switch-after, or choose a"
            f" synchronous schedule"
        )


def measured(settings: Settings, watch: Measuring) -> Cost:
    """What the program of a job costs; in a process group every rank calls this."""
    if settings.tensor > 1:
        raise InputError(
            f"the plan has tensor parallel {settings.tensor}, and stages are timed on one rank"
            " each: `weft train --plan` measures the step itself"
        )
    return Workload(settings, expert_ranks(settings)).profiled(THOROUGH, watch)


def checked(settings: Settings, saving: Saving = NEVER) -> list[float]:
    """The losses of the same job on the reference, up to where it ends."""
    job, program = Workload(settings, emulated(settings)), settings.program
    steps = last_step(settings, saving)
    if is_asynchronous(program):
        reference = Reference(
            job.stages,
            _restarting(settings, saving),
            scheduler=job.scheduler,
            groups=scoped(program, None),
            staleness=job.stale,
            **job.arguments(),
        )
        return [float(reference.step(*job.batch(step))) for step in range(steps)]
    reference = Reference(job.stages, program, **job.arguments())
    losses = []
    for step in range(steps):
        job.set_rate(step)
        losses.append(float(reference.step(*job.batch(step))))
    return losses


def _restarting(settings: Settings, saving: Saving) -> Program | Method:
    """A program that begins again after each save, where it keeps no older versions."""
    program, every, start = settings.program, saving.save_every, settings.switch_after
    if every is None or program.is_stashing:
        return program
    starts = [step - start for step in range(every, settings.steps, every) if step > start]
    return restarted([0, *starts], method_of(program))
