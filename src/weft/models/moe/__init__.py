"""A small mixture-of-experts decoder as a plain sequence of layers, to be cut into stages anywhere.

    embedding   tokens -> vectors, with their positions added
    block0 ...  dense layers: attention and a perceptron
    block1 ...  expert layers: attention and router, dispatch, experts, combine
    head        the last norm, and a score for every sign of the vocabulary

A rank of an expert group has some of the experts; dispatch and combine exchange tokens with the
others. Knows no stage and no microbatch.
"""

from weft.models.moe.blocks import DenseBlock, ExpertBlock, moe
from weft.models.moe.routing import LOADS

__all__ = ["LOADS", "DenseBlock", "ExpertBlock", "moe"]
