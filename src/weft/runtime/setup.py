"""Set-up: the task of a pipeline, refused or checked by each rank, then agreed on by all."""

from __future__ import annotations

from weft.cost import Cost
from weft.errors import InputError
from weft.ir.program import Program
from weft.lower import Amount, offloads
from weft.runtime.compression import AskedCompression
from weft.runtime.device.link import linked
from weft.runtime.distributed import check_shares, refuse_captured
from weft.runtime.initial.blueprint import Blueprint
from weft.runtime.losses import LossFunction
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.world import World
from weft.runtime.suit import check_capturable, refuse_marked
from weft.runtime.task import Task, agreed
from weft.runtime.weights.options import Updating


def checked_task(
    blueprint: Blueprint,
    program: Program,
    loss: LossFunction,
    updating: Updating,
    members: Members | None,
    compress: AskedCompression,
    *,
    is_captured: bool,
) -> Task:
    """The task of this process; refuses what cannot be trained so, whatever other ranks say."""
    program = program if members is None else members.running(program)
    devices = range(program.devices) if members is None else members.here
    task = Task.of(blueprint, program, loss, updating, devices).compressing(compress)
    if members is not None and members.replicas > 1:
        _refuse_split_batch(task.program)
    check_shares(task.stages, members)
    if is_captured:
        check_capturable(task.program)
        refuse_marked(task.stages)
        refuse_captured(task.stages)
    return task


def agreed_task(
    task: Task, world: World, cost: Cost | None, offload: Amount, *, is_captured: bool
) -> tuple[Task, Cost | None]:
    """The task as all ranks walk it over their transport, and the cost that all of them go by."""
    is_moving = offload != "none" or offloads(task.program)
    cost = agreed(world, cost)
    if cost is not None and is_moving:
        cost = linked(cost, task.device, world.gather)
    task = task.offloading(offload, cost)
    if is_captured:
        check_capturable(task.program)
    return task.over(world, cost), cost


def _refuse_split_batch(program: Program) -> None:
    if any(one.is_whole_batch for one in program.graph.stages):
        raise InputError(
            f"{program.name} has a stage that takes the whole batch, and each replica has only"
            f" its share of one; leave out the dimensions 'dp' and 'ep' of mesh="
        )
