"""What a name and options ask for: a schedule, the program of a file, or a plan."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InputError
from weft.notation.files import text_of
from weft.request.costs import Costs
from weft.request.passes import Passes
from weft.request.plan import Plan
from weft.request.plan_file import is_plan, plan_from_json
from weft.request.request import Request, is_file
from weft.request.sizes import Sizes
from weft.request.values import refuse


def request_called(
    name: str, sizes: Sizes | None = None, passes: Passes | None = None, costs: Costs | None = None
) -> Request:
    """The request of a name; a plan has all that the options say, and refuses them."""
    sizes, passes, costs = sizes or Sizes(), passes or Passes(), costs or Costs()
    plan = plan_called(name)
    if plan is None:
        return Request(name, sizes, passes, costs)
    refuse(f"{name} is a plan with a program of its own", sizes.asked)
    refuse(f"{name} is a plan with passes of its own", passes.asked)
    if costs != Costs():
        raise InputError(
            f"{name} is a plan with costs of its own; leave out --model, --device, --cost and"
            " other options of costs"
        )
    return replace(plan.request, name=name)


def plan_called(name: str) -> Plan | None:
    """The plan of a file; None where a name is that of something else."""
    if not is_file(name):
        return None
    text = text_of(name)
    return plan_from_json(text, name) if is_plan(text) else None
