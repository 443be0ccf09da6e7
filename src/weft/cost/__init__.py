"""Cost: seconds and bytes of everything a program does."""

from weft.cost.block import Block, Product
from weft.cost.blocks import active_parameters, blocks, flops, parameters
from weft.cost.cluster import Cluster
from weft.cost.cost import Cost, Link, Memory, Network, PerStage, Times, sizes_of_parts
from weft.cost.derive import Derivation, derive
from weft.cost.device import Device, Point
from weft.cost.devices import DEVICES, device_named
from weft.cost.evened import evened
from weft.cost.fit import Fit, fitted
from weft.cost.layout import Layout, Storage
from weft.cost.measurement import Average, Measurement
from weft.cost.models import MODELS, model_named
from weft.cost.provenance import Estimate, Marks, Provenance
from weft.cost.share import Share
from weft.cost.stretch import stretched
from weft.cost.transformer import Transformer

__all__ = [
    "DEVICES",
    "MODELS",
    "Average",
    "Block",
    "Cluster",
    "Cost",
    "Derivation",
    "Device",
    "Estimate",
    "Fit",
    "Layout",
    "Link",
    "Marks",
    "Measurement",
    "Memory",
    "Network",
    "PerStage",
    "Point",
    "Product",
    "Provenance",
    "Share",
    "Storage",
    "Times",
    "Transformer",
    "active_parameters",
    "blocks",
    "derive",
    "device_named",
    "evened",
    "fitted",
    "flops",
    "model_named",
    "parameters",
    "sizes_of_parts",
    "stretched",
]
