"""As everywhere that torch computes, one thread for each test process; launched ranks are warm."""

import torch

from tests.runtime.warm import warm_ranks

__all__ = ["warm_ranks"]

torch.set_num_threads(1)
