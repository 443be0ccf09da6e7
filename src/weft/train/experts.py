"""Experts of a training run: which ranks hold them, and whether stages are cut into segments.

--expert-ranks 2 -d 2    ranks 0 1      experts 0 to 3 of every layer, stage by stage
                               2 3      experts 4 to 7
"""

from __future__ import annotations

import torch.distributed as dist

from weft.errors import InputError
from weft.ir.kinds import Layer
from weft.ir.program import Program
from weft.lower import experts
from weft.runtime import Stages
from weft.runtime import layers_of as layers_in
from weft.runtime.experts import ALONE, Emulated, ExpertGroup, ExpertRanks
from weft.train.settings import Settings


def emulated(settings: Settings) -> ExpertGroup:
    """All ranks of an expert group in one process, for the reference."""
    size = settings.expert_ranks
    return Emulated(size) if size > 1 else ALONE


def expert_ranks(settings: Settings) -> ExpertGroup:
    """The ranks with which this one shares the experts of its stages; every rank calls this."""
    if settings.expert_ranks == 1:
        return ALONE
    if not dist.is_initialized():
        raise InputError("expert ranks are processes; one alone can only be their reference")
    is_on_gpu = settings.on_this_machine().accelerator == "cuda"
    backend, own = "nccl" if is_on_gpu else "gloo", None
    for ranks in _groups(settings.program):
        made = dist.new_group(ranks, backend=backend)  # all ranks make all groups
        own = made if dist.get_rank() in ranks else own
    assert isinstance(own, dist.ProcessGroup)
    return ExpertRanks(own)


def _groups(program: Program) -> list[list[int]]:
    """The devices that hold the same stages of the pipes of an expert group."""
    placed = program.placement.pipes
    found = {
        tuple(placed[pipe][stage] for pipe in pipes): None
        for pipes in program.expert_groups
        for stage in range(program.stages)
    }
    return [[*devices] for devices in found]


def segmented(settings: Settings, stages: Stages) -> Program:
    """What runs: stages of expert layers are cut where a pair overlaps them, or where asked for."""
    program, layers = settings.program, layers_in(stages)
    has_experts = any(Layer.EXPERTS in own for own in layers)
    if settings.experts and not has_experts:
        raise InputError(
            "--experts cuts layers of experts, and no stage shows any; name a model that has them,"
            " like --model moe-small"
        )
    if not has_experts or not (settings.experts or program.actions.joined.any()):
        return program
    return experts(program, layers=layers)
