"""Python packages that a machine with PyTorch for GPUs has, so that they need not travel."""

THERE = frozenset()
