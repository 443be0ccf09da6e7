"""Machines: a model on a cluster, as a live page asks for it.

"model": "gpt-6.2b", "device": "a100",        names, or the fields of files
"microbatch_size": 1, "sequence": 4096,       0: the model's own
"tensor_parallel": 2, "expert_parallel": 1,   devices that share a stage
"data_parallel": 4, "cluster": 64             0 copies: as many as the cluster has room for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.cost import Derivation, Layout
from weft.errors import InputError
from weft.request.values import Bundle, Whole, given, picked
from weft.web.balanced import BalancedDerivation
from weft.web.descriptions import read_device, read_model

MOST = 1 << 20  # devices, or tokens of a sequence
NAMES = (
    *("microbatch_size", "sequence"),
    *("tensor_parallel", "expert_parallel", "data_parallel", "cluster"),
)


@dataclass(frozen=True, slots=True)
class Counts(Bundle):
    """What is counted of a model and of a cluster; None is as usual."""

    microbatch_size: int | None = given(Whole(most=MOST))
    sequence: int | None = given(Whole(most=MOST))
    tensor_parallel: int = given(Whole(most=MOST), 1)
    expert_parallel: int = given(Whole(most=MOST), 1)
    data_parallel: int | None = given(Whole(most=MOST))
    cluster: int | None = given(Whole(most=MOST))


def read_derivation(asked: Mapping[str, object], devices: int | None) -> Derivation:
    """What a cost is derived from, for a pipeline of this many devices where that is known."""
    model, device = read_model(asked.get("model", "")), read_device(asked.get("device", ""))
    counts = picked(Counts, {name: value for name, value in asked.items() if value != 0}, *NAMES)
    kind = BalancedDerivation if asked.get("is_balanced") is True else Derivation
    return kind(
        model=replace(
            model,
            microbatch=counts.microbatch_size or model.microbatch,
            sequence=counts.sequence or model.sequence,
        ),
        device=device,
        layout=Layout(
            tensor=counts.tensor_parallel,
            experts=counts.expert_parallel,
            replicas=_copies(counts, devices),
        ),
    )


def _copies(counts: Counts, devices: int | None) -> int:
    """Those asked for, or as many as there is room for; InputError where the cluster is full."""
    if counts.cluster is None or devices is None:
        return counts.data_parallel or 1
    each = devices * counts.tensor_parallel * counts.expert_parallel
    copies = counts.data_parallel or max(1, counts.cluster // each)
    if copies * each > counts.cluster:
        raise InputError(_too_many(counts, devices, copies))
    return copies


def _too_many(counts: Counts, devices: int, copies: int) -> str:
    factors = {
        "of the pipeline": devices,
        "of tensor parallelism": counts.tensor_parallel,
        "of expert parallelism": counts.expert_parallel,
        "copies": copies,
    }
    product = " x ".join(f"{count} {what}" for what, count in factors.items() if count > 1)
    total = copies * devices * counts.tensor_parallel * counts.expert_parallel
    return (
        f"{product} are {total:,} devices, and the cluster has {counts.cluster:,}:"
        " take fewer of one of them, or a larger cluster"
    )
