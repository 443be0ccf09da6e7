"""The notation: programs, costs, timelines, models, devices and clusters as text that people read.

Text and torch's tables for programs, versioned JSON for everything. What cannot be read is
refused with a NotationError that says where and why; nothing that is read is executed.
"""

from weft.notation.files import (
    is_huggingface,
    read_cluster,
    read_cost,
    read_device,
    read_graph,
    read_model,
    read_program,
    read_timeline,
)
from weft.notation.json.document import Document, from_json, to_json
from weft.notation.json.graph import graph_from_json
from weft.notation.text.plain import plain
from weft.notation.text.program import from_text, to_text
from weft.notation.tokens import token
from weft.notation.torch.reading import from_torch_csv
from weft.notation.torch.writing import to_torch_csv

__all__ = [
    "Document",
    "from_json",
    "from_text",
    "from_torch_csv",
    "graph_from_json",
    "is_huggingface",
    "plain",
    "read_cluster",
    "read_cost",
    "read_device",
    "read_graph",
    "read_model",
    "read_program",
    "read_timeline",
    "to_json",
    "to_text",
    "to_torch_csv",
    "token",
]
