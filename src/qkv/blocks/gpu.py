"""What a GPU needs of its own."""

from importlib.util import find_spec

import torch

TRITON = torch.cuda.is_available() and find_spec("triton") is not None
"""Whether kernels that are written in Triton can run here. They are loaded by whoever uses them, and nobody else."""
