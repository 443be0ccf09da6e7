"""The reference: what a program means, in one process; every pipeline must give the same bits."""

from weft.runtime.reference.trainer import Reference
from weft.runtime.reference.versions import (
    Method,
    Order,
    Recomputed,
    Version,
    always,
    method_of,
    never,
    order_of,
    pipedream,
    pipedream_2bw,
    restarted,
    synchronous,
    versions_of,
    vertical_sync,
    wpipe,
)

__all__ = [
    "Method",
    "Order",
    "Recomputed",
    "Reference",
    "Version",
    "always",
    "method_of",
    "never",
    "order_of",
    "pipedream",
    "pipedream_2bw",
    "restarted",
    "synchronous",
    "versions_of",
    "vertical_sync",
    "wpipe",
]
