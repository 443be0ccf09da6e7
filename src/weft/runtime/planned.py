"""Planned pipelines: a model and a plan become what a Pipeline is made of.

    layers of each stage     where the model is cut
    recompute, offload       the program, and what leaves for the host
    selective                marks on norms and activation functions
    replicas, experts        the mesh, or more pipes where all devices run in one process
    sharded                  whose work an update is

Knows plans; `Pipeline` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import Amount, replicated
from weft.request import Plan, read_plan
from weft.request.passes import AMOUNTS, NONE
from weft.runtime.device.shards import is_sharded
from weft.runtime.initial.blueprint import GivenStages
from weft.runtime.ranks.members import EXPERTS, PIPELINE, REPLICAS
from weft.runtime.split.planned import cut_by
from weft.runtime.stage.storage.selective import mark_selective

GivenPlan: TypeAlias = Plan | str | PathLike[str]
TENSOR = "tp"


@dataclass(frozen=True)
class PlannedRun:
    """What a Pipeline is made of: its stages, its program, and further arguments."""

    stages: GivenStages
    program: Program
    options: dict[str, Any]


def planned(
    model: nn.Module | GivenStages, plan: GivenPlan, example: Any, options: dict[str, Any]
) -> PlannedRun:
    """A model as a plan has it; `options` are arguments of a Pipeline, which win over the plan."""
    plan = plan_of(plan)
    stages = stages_by(model, plan, example)
    options = {**_options(plan, has_optimizer="optimizer" in options), **options}
    program = program_of(plan)
    if options.get("mesh") is None:
        options["mesh"] = mesh_of(plan)
    if options["mesh"] is None:
        program = replicated(program, plan.layout.copies, expert_ranks=plan.layout.experts)
    options.setdefault("cost", _cost(plan, program))
    return PlannedRun(stages, program, options)


def plan_of(given: GivenPlan) -> Plan:
    """The plan, or that of a file."""
    return given if isinstance(given, Plan) else read_plan(given)


def stages_by(model: nn.Module | GivenStages, plan: Plan, example: Any = None) -> GivenStages:
    """The stages of a model, cut and marked as a plan says; those that are cut stay so."""
    if isinstance(model, nn.Module) and not isinstance(model, nn.ModuleList):
        _check_tensor(model, plan)
        stages: GivenStages = cut_by(model, plan.layers, example)
    else:
        stages = [*model]
        _check_stages(stages, plan)
    if plan.is_selective:
        mark_selective(one for one in stages if isinstance(one, nn.Module))
    return stages


def _check_tensor(model: nn.Module, plan: Plan) -> None:
    """Refuse a model whose layers are whole where ranks are to share them."""
    if plan.layout.tensor > 1 and not any(map(is_sharded, model.parameters())):
        raise InputError(
            f"the plan has tensor parallel {plan.layout.tensor}, and Weft does not cut layers: give"
            " a model whose layers are parallel themselves (torch's parallelize_module, or"
            f" weft.models.share_layers), and mesh= of runtime.planned.mesh_of, over whose"
            f" dimension {TENSOR!r} they are; or plan with --max-tensor 1"
        )


def _check_stages(stages: Sequence[Any], plan: Plan) -> None:
    if len(stages) != plan.program.stages:
        raise InputError(
            f"{len(stages)} stages are given, and the plan has {plan.program.stages}, of"
            f" {' '.join(map(str, plan.layers))} layers; give the model as it is, or as many stages"
        )


def program_of(plan: Plan) -> Program:
    """The program of one pipeline with what is recomputed, and the stages that offload."""
    passes = plan.passes
    if _amount(plan) is not None:
        return passes.recomputed(plan.program)
    return passes.lowered(plan.program, plan.costs)


def _amount(plan: Plan) -> Amount | None:
    """How much a plan offloads; None where it names stages."""
    asked = plan.passes.offload or NONE
    if asked in (NONE, *AMOUNTS):
        return AMOUNTS.get(asked, "none")
    return float(asked) if "." in asked else None


def _options(plan: Plan, *, has_optimizer: bool) -> dict[str, Any]:
    layout = plan.layout
    return {
        "offload": _amount(plan) or "none",
        "shard_optimizer": layout.is_sharded and layout.copies > 1 and has_optimizer,
    }


def _cost(plan: Plan, program: Program) -> Any:
    """By which actions are launched; None where microbatches were measured one by one."""
    cost = plan.costs
    if plan.cost is not None and plan.cost.sizes and plan.layout.copies > 1:
        return None
    return cost.of(program)


def mesh_of(plan: GivenPlan, device: str | None = None) -> DeviceMesh | None:
    """A mesh for the layout of a plan, in a process group of as many ranks; None without one.

    Replicas come first, then the devices of the pipeline, and side by side what shares a device.
    """
    layout, program = plan_of(plan).layout, plan_of(plan).program
    if not dist.is_initialized():
        return None
    sizes = {
        REPLICAS: layout.replicas,
        PIPELINE: program.devices,
        EXPERTS: layout.experts,
        TENSOR: layout.tensor,
    }
    needed, ranks = program.devices * layout.replicas * layout.processors, dist.get_world_size()
    if needed != ranks:
        raise InputError(
            f"the plan is for {needed} ranks ({layout.replicas} replicas x {program.devices}"
            f" devices x {layout.processors} processors), and this process group has {ranks}"
        )
    names = [name for name, size in sizes.items() if size > 1 or name == PIPELINE]
    kind = device or ("cuda" if dist.get_backend() == "nccl" else "cpu")
    return init_device_mesh(kind, tuple(sizes[one] for one in names), mesh_dim_names=tuple(names))
