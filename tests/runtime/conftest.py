"""Small matrices on a machine with few cores: one thread for each test process."""

import torch

torch.set_num_threads(1)
