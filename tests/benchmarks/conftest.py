"""As everywhere that torch computes: one thread for each test process."""

import torch

torch.set_num_threads(1)
