"""Models that Weft trains itself: plain PyTorch, with nothing of pipelines in them."""

from weft.models.gpt import gpt

__all__ = ["gpt"]
