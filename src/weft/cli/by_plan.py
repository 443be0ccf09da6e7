"""Jobs by a plan: what `weft train --plan` takes from the file, and what it refuses beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.request import Plan, is_model_file, model_called
from weft.request.values import refuse

if TYPE_CHECKING:
    from weft.cli.jobs import Job

SIZES = {  # of a training, and what a model calls them
    "microbatch_size": "microbatch",
    "context": "sequence",
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
}


def by_plan(job: Job, plan: Plan) -> Job:
    """The job with all that its plan decides; InputError for options that say it again."""
    known = decided(plan)
    _refuse_options(job, known)
    _refuse_tensor(job, plan)
    _check_model(job, plan, known)
    layout, training = plan.layout, replace(job.training, **known)
    return job._replace(replicas=layout.replicas, expert_ranks=layout.experts, training=training)


def decided(plan: Plan) -> dict[str, Any]:
    """What a plan says of a training, by the names of that."""
    asked = plan.passes.offload or "none"
    is_of_stages = asked.replace(",", "").isdigit()  # which are in the program
    return {
        "offload": "none" if is_of_stages else asked,
        "shard_optimizer": plan.layout.is_sharded and plan.layout.copies > 1,
        **_sizes(plan),
    }


def _sizes(plan: Plan) -> dict[str, int]:
    """Those of its model, or of the one whose stages were measured; of others nothing is known."""
    if plan.model is not None:
        return {name: getattr(plan.model, key) for name, key in SIZES.items()}
    measurement = plan.cost and plan.cost.measurement
    known = measurement.model if measurement else {}
    return {name: int(known[name]) for name in SIZES if name in known}


def _refuse_options(job: Job, known: dict[str, Any]) -> None:
    """Options that have a value of their own beside a plan that has it."""
    schedule = ["schedule"] if job.schedule != "1f1b" else []
    copies = [name for name in ("replicas", "expert_ranks") if getattr(job, name) != 1]
    trained = [name for name in job.training.asked if name in known]
    refuse(f"{job.plan} says that already", [*schedule, *job.sizes.asked, *copies, *trained])


def _refuse_tensor(job: Job, plan: Plan) -> None:
    """Refuse to share layers that are not those of Weft's own GPT, or optimizer state as well."""
    layout = plan.layout
    if layout.tensor > 1 and layout.copies > 1 and layout.is_sharded:
        raise InputError(
            f"{job.plan} has tensor parallel {layout.tensor} and copies that share the state of the"
            " optimizer, and ranks that share layers keep theirs; plan with --optimizer whole"
        )
    has_experts = plan.model is not None and plan.model.experts
    is_other = job.training.model is not None and is_model_file(job.training.model)
    if layout.tensor > 1 and (has_experts or is_other):
        what = "experts" if has_experts else f"{job.training.model}"
        raise InputError(
            f"{job.plan} has tensor parallel {layout.tensor}, and `weft train` shares layers"
            f" of its own GPT alone, not of {what}; plan with --max-tensor 1, or give a model whose"
            " layers are parallel themselves to Pipeline.from_plan"
        )


def _check_model(job: Job, plan: Plan, known: dict[str, Any]) -> None:
    """Refuse a model other than the one that was planned."""
    found = {"layers": job.training.layers}
    if job.training.model is not None:
        model = model_called(job.training.model)
        found = {name: getattr(model, name) for name in ("layers", "hidden", "heads")}
    elif known.keys() >= SIZES.keys():
        return
    for name, wanted in ({**known, "layers": sum(plan.layers)}).items():
        if found.get(name, wanted) != wanted:
            raise InputError(
                f"{job.plan} is for a model with {name} {wanted}, and the one to train has"
                f" {found[name]}; give the model that was planned (--model, or --{name})"
            )
