"""Models, devices and clusters as JSON: the fields of each, easy to write by hand.

    {"format": "weft.model", "version": 1,
     "layers": 30, "hidden": 4096, "heads": 32, "ffn": 16384, "gated": false,
     "vocabulary": 32000, "sequence": 1024, "microbatch": 3}

    {"format": "weft.device", "version": 1,
     "peak": 312e12, "bandwidth": 2e12, "memory": 80e9, "per_node": 8,
     "near": {"latency": 3e-6, "bandwidth": 3e11}, "far": {"bandwidth": 25e9},
     "matmul": [{"flops": 1e11, "fraction": 0.6, "measured": true}]}

    {"format": "weft.cluster", "version": 1, "devices": 64, "device": "h100", "per_node": 4}

What equals its default is left out, and so is a number without a limit.
"""

from __future__ import annotations

from weft.cost import Cluster, Device, Transformer
from weft.notation.json.reading import VERSION, Node

MODEL, DEVICE, CLUSTER = "weft.model", "weft.device", "weft.cluster"

_DEPTH = 2  # of a member: a list of points
_DEPTH_OF_DEVICE = 3  # within a cluster


def model_object(model: Transformer) -> dict[str, object]:
    """What `read_model` reads."""
    return {"format": MODEL, "version": VERSION, **model.to_mapping()}


def device_object(device: Device) -> dict[str, object]:
    """What `read_device` reads."""
    return {"format": DEVICE, "version": VERSION, **device.to_mapping()}


def cluster_object(cluster: Cluster) -> dict[str, object]:
    """What `read_cluster` reads."""
    return {"format": CLUSTER, "version": VERSION, **cluster.to_mapping()}


def read_model(node: Node) -> Transformer:
    """The model of a document."""
    return Transformer.from_mapping(_fields(node, MODEL))


def read_device(node: Node) -> Device:
    """The device of a document."""
    return Device.from_mapping(_fields(node, DEVICE))


def read_cluster(node: Node) -> Cluster:
    """The cluster of a document."""
    return Cluster.from_mapping(_fields(node, CLUSTER, depth=_DEPTH_OF_DEVICE))


def _fields(node: Node, format: str, *, depth: int = _DEPTH) -> dict[str, object]:
    """All members but the heading; `from_mapping` knows which there may be."""
    members = node.document(format, node.members_of_any_name())
    return {
        name: member.plain(depth=depth)
        for name, member in members.items()
        if name not in ("format", "version")
    }
