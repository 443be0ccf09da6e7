"""Cost: seconds and bytes of everything a program does."""

from weft.cost.cost import Cost, Link, Memory, Network, PerStage, Share, Times

__all__ = ["Cost", "Link", "Memory", "Network", "PerStage", "Share", "Times"]
