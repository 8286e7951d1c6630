import torch

torch.set_num_threads(1)  # the networks are tiny, and the suite runs one process a core
