"""Models that Weft trains itself: plain PyTorch, with nothing of pipelines in them."""

from weft.models.gpt import gpt
from weft.models.mixtral import adapted, adapted_layer
from weft.models.moe import moe
from weft.models.tensor import share_layers

__all__ = ["adapted", "adapted_layer", "gpt", "moe", "share_layers"]
