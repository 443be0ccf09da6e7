"""Tensor parallelism in time: the processors of a group gather and scatter each other's tokens.

With sequence parallelism each has its part of the tokens between matrices. Before the first matrix
of attention and of an MLP all tokens are gathered; after the last one sums are scattered; the
backward does the reverse (arXiv 2205.05198, section 4.2.2). That it gathers the tokens once more
for W is left out: there it overlaps with the input gradient.
"""

from __future__ import annotations

from weft.cost.setting import Setting, Stage


def gathering(setting: Setting, stage: Stage) -> float:
    """Seconds of all gathers and scatters of a forward, or of a backward."""
    tensor = setting.layout.tensor
    if tensor == 1:
        return 0.0
    link = setting.link(tensor)
    each = link.latency + link.seconds(setting.model.message_bytes * (tensor - 1) / tensor)
    return each * sum(block.gathers for block in stage)
