"""Passes: what the options add to a program before it is timed."""

from __future__ import annotations

from dataclasses import replace

from weft.cli.options import Passes
from weft.cli.requests import Pricing, cost_of, proved, unfolded
from weft.cost import Cost, Link, Share
from weft.errors import InputError
from weft.ir.kinds import Kind, Part
from weft.ir.program import Program
from weft.lower import experts, offload, recompute, updates, wires
from weft.simulate import simulate
from weft.timeline import Timeline
from weft.verify import Report, check

ALL = "all"
MOST_MADE = 4_000_000  # actions that a pass may make
COPY = 0.25  # of F + B: the time to copy a device's activations, where none is given


def timed(program: Program, pricing: Pricing, passes: Passes) -> tuple[Timeline, Report]:
    """The timeline of a program with what the passes add, proved."""
    if passes == Passes():
        return proved(program, cost_of(program, pricing))
    program = unfolded(program)
    if passes.recompute is not None:
        program = recompute(program, stages=_stages(passes.recompute, program, "--recompute"))
    if passes.experts is not None:
        _check_made(len(Part) * passes.experts * len(program), f"--experts {passes.experts}")
        program = experts(program, layers=passes.experts)
    if passes.steps is not None:
        program = _repeated(program, passes.steps)
    cost = _with_copies(cost_of(program, pricing), pricing, passes)
    if passes.offload is not None:
        check(program)
        stages = _stages(passes.offload, program, "--offload")
        program = offload(simulate(program, cost), stages=stages)
    return proved(program, cost)


def in_streams(program: Program, pricing: Pricing, passes: Passes) -> tuple[Timeline, Report]:
    """The same with every stream in use: pairs cut into parts, all offloaded, and wires."""
    has_pairs = bool(program.actions.joined.any()) and not _is_cut(program)
    passes = replace(
        passes,
        experts=passes.experts or (1 if has_pairs else None),
        offload=passes.offload or ALL,
    )
    timeline, proof = timed(program, pricing, passes)
    return simulate(wires(timeline.program), timeline.cost), proof


def _repeated(program: Program, steps: int) -> Program:
    """A step and its updates, again and again."""
    if bool((program.actions.kind == Kind.UPDATE).any()):
        raise InputError(f"{program.name} places its updates itself; --updates has its steps")
    _check_made(len(program) * steps, f"--steps {steps}")
    return updates(program).unrolled(steps)


def _check_made(actions: int, option: str) -> None:
    """Refuse what would take more memory than most machines have, before it is taken."""
    if actions > MOST_MADE:
        raise InputError(
            f"{option} makes {actions:,} actions or more; Weft takes {MOST_MADE:,}. Ask for less"
        )


def _is_cut(program: Program) -> bool:
    return bool((program.actions.segment >= 0).any())


def _with_copies(cost: Cost, pricing: Pricing, passes: Passes) -> Cost:
    """The cost with a link to the host on which a device's activations take `copy` seconds."""
    if not isinstance(pricing, Share):
        if passes.copy is not None:
            raise InputError(
                "a cost file or a device has its own link to the host; leave out --copy"
            )
        return cost
    seconds = passes.copy
    if seconds is None:
        seconds = COPY * (pricing.forward + pricing.backward)
    host = Link(bandwidth=1 / seconds) if seconds > 0 else Link()
    return replace(cost, network=replace(cost.network, host=host))


def _stages(text: str, program: Program, flag: str) -> list[int] | None:
    """Stages from `all`, `0` or `0,2,4`."""
    if text == ALL:
        return None
    try:
        stages = [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} {text}: `all`, or stages like 0,2,4") from None
    if any(not 0 <= stage < program.stages for stage in stages):
        raise InputError(f"{flag} {text}: stages are numbered 0 to {program.stages - 1}")
    return stages
