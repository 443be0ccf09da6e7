"""Small models and clusters, on which everything can be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.cost import Cluster, Device, Link, Transformer
from weft.plan.question import Choices, Question

MODEL = Transformer(
    layers=6, hidden=512, heads=8, ffn=2048, vocabulary=4_000, sequence=512, source="for tests"
)
HEAVY = replace(MODEL, vocabulary=16_000)  # its head takes as long as a few layers
MOE = replace(MODEL, experts=8, top_k=2, expert_ffn=1024, dense_layers=1)
DEVICE = Device(
    peak=1e14,
    bandwidth=1e12,
    memory=1e9,
    host=Link(1e-5, 2e10),
    near=Link(5e-6, 1e11),
    far=Link(1e-5, 2e10),
    per_node=2,
)


def question(
    *, model: Transformer = MODEL, devices: int = 4, memory: float = 1e9, **more: Any
) -> Question:
    """Eight sequences on a few small devices."""
    cluster = Cluster(devices=devices, device=replace(DEVICE, memory=memory))
    given = {"batch": 8 * model.sequence, "choices": Choices(), **more}
    return Question(model=model, cluster=cluster, **given)
