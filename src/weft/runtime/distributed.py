"""Distributed stages: what cannot be done with stages that several ranks compute together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from weft.errors import InputError
from weft.ir.program import Program
from weft.runtime.device.shards import is_gathered, is_sharded
from weft.runtime.initial.blueprint import Blueprint, is_meta
from weft.runtime.precision import Precision
from weft.runtime.ranks.members import SHARES, Members


def check_distributed(blueprint: Blueprint, program: Program, precision: Precision) -> None:
    """Refuse, with the reason, what stages of DTensors or of FSDP2 cannot do in this program."""
    for index, stage in enumerate(blueprint.stages):
        if any(map(is_sharded, stage.parameters())):
            _refuse(index, _with_shards(stage, program))
            _refuse(index, _without_values(index, blueprint))
        if is_gathered(stage):
            _refuse(index, _when_gathered(stage, program, precision))


def _with_shards(stage: nn.Module, program: Program) -> dict[str, bool]:
    return {
        f"{program.name} stashes no weights, and looks up newer ones by their memory, which a"
        f" DTensor does not show; use a schedule that stashes": (
            program.period is not None and not program.is_stashing
        ),
        f"{program.name} runs parts of a stage on a thread of their own, whose collectives would"
        f" mix with those of the others; use the program without lower.experts": bool(
            (program.actions.segment >= 0).any()
        ),
    }


def _without_values(index: int, blueprint: Blueprint) -> dict[str, bool]:
    is_made_here = index not in blueprint.functions and is_meta(blueprint.stages[index])
    return {
        "initial= reads whole tensors; load them into the model before it is distributed": (
            blueprint.checkpoint is not None
        ),
        "it is on meta; give a function that makes the module and distributes it": is_made_here,
    }


def _when_gathered(stage: nn.Module, program: Program, precision: Precision) -> dict[str, bool]:
    return {
        f"{program.name} is asynchronous, and FSDP2 gathers the newest weights alone; use a"
        f" synchronous schedule": program.period is not None,
        "precision= would cast weights that FSDP2 gathers; give fully_shard a"
        " MixedPrecisionPolicy": precision.compute is not None,
        "fully_shard is for parts of it, not for the stage itself, which has to gather and to"
        " scatter for all of them; call fully_shard(stage, mesh=...) as well": (
            not hasattr(stage, "set_requires_gradient_sync")
        ),
    }


def _refuse(index: int, reasons: dict[str, bool]) -> None:
    for why, is_so in reasons.items():
        if is_so:
            raise InputError(f"stage {index} has weights that several ranks hold together: {why}")


def check_shares(stages: Sequence[nn.Module], members: Members | None) -> None:
    """Refuse FSDP2 where nothing says that its ranks are given shares of the batch."""
    for index, stage in enumerate(stages):
        if is_gathered(stage) and (members is None or not members.has_shares):
            raise InputError(
                f"stage {index} is sharded by FSDP2, and mesh= has no dimension for it: call that"
                f" dimension {' or '.join(map(repr, SHARES))}, and give the whole mesh by mesh="
            )


def joined_by(stages: Sequence[nn.Module], members: Members | None) -> Members | None:
    """The ranks of a run, with those of other pipelines only where these hold shards as well."""
    is_shared = any(is_sharded(weight) for stage in stages for weight in stage.parameters())
    return members if members is None or is_shared else replace(members, everyone=())


def refuse_captured(stages: Sequence[nn.Module]) -> None:
    """Refuse to replay collectives from a CUDA graph."""
    for index, stage in enumerate(stages):
        if any(map(is_sharded, stage.parameters())):
            reason = "graphs=True would capture their collectives; leave it out"
            _refuse(index, {reason: True})
