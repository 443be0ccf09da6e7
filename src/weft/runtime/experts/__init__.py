"""Expert parallelism: ranks that hold some of the experts each, and exchange tokens.

    replica 0   attention ─ dispatch ─╮ ╭─ experts 0 1 ─ combine ─
                                      ╳
    replica 1   attention ─ dispatch ─╯ ╰─ experts 2 3 ─ combine ─

The ranks of a group are replicas of a pipeline: each has a share of the batch, and all weights that
are not marked as held apart are the same on all of them.
"""

from weft.runtime.experts.apart import hold_apart, is_apart
from weft.runtime.experts.emulated import Emulated
from weft.runtime.experts.group import ALONE, ExpertGroup, OneRank
from weft.runtime.experts.ranks import ExpertRanks

__all__ = ["ALONE", "Emulated", "ExpertGroup", "ExpertRanks", "OneRank", "hold_apart", "is_apart"]
