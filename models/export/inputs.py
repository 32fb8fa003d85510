"""One model to export: its inputs, examples of them, and which of their dimensions are free."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

BATCH, SEQUENCE, TARGET, PAST, IMAGE = 2, 7, 5, 4, 16
TRACED, DYNAMO = "traced", "dynamo"
Free = dict[int, str]


@dataclass(frozen=True)
class Export:
    """One model to export.

    Args:
        make: Makes the model, given the attention implementation.
        attention: Attention implementations: `eager`, `sdpa`.
        inputs: Names of its inputs.
        outputs: The outputs that are kept.
        exporters: Those that can write it.
        left_out: Ways to write it, attention and exporter, of which others tell as much.
        mask_dtype: Element type of the masks.
        folder: Where its files lie, beside this one.
    """

    make: Callable[[str], Any]
    attention: tuple[str, ...] = ("eager", "sdpa")
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    outputs: tuple[str, ...] = ("last_hidden_state",)
    exporters: tuple[str, ...] = (TRACED, DYNAMO)
    left_out: tuple[tuple[str, str], ...] = ()
    mask_dtype: torch.dtype = torch.int64
    folder: str = "fixtures"

    def ways(self) -> list[tuple[str, str]]:
        """How it is written: attention implementations and exporters."""
        return [w for w in product(self.attention, self.exporters) if w not in self.left_out]

    def free(self, name: str) -> Free:
        """Names of the free dimensions of an input or output."""
        if name in ("pixel_values", "lengths", "logits", "sentence_embedding"):
            return {0: "batch"}
        if name == "last_hidden_state":  # as many tokens as the last input has
            return self.free(self.inputs[-1])
        return {0: "batch", 1: "target" if name.startswith("decoder") else "sequence"}

    def dynamic(self) -> tuple[Any, ...]:
        """What the dynamo exporter is told of every input's free dimensions."""
        limits = {"batch": (1, 64), "sequence": (2, 60), "target": (2, 60)}
        dims = {n: torch.export.Dim(n, min=a, max=b) for n, (a, b) in limits.items()}
        return tuple({k: dims[d] for k, d in self.free(n).items()} for n in self.inputs)

    def example(self, name: str) -> torch.Tensor:
        """An example of an input."""
        shape = (BATCH, TARGET if name.startswith("decoder") else SEQUENCE)
        if name == "pixel_values":
            return torch.randn(BATCH, 3, IMAGE, IMAGE)
        if name == "lengths":
            return torch.tensor([SEQUENCE, 4])
        if "mask" in name:
            mask = torch.ones(shape, dtype=self.mask_dtype)
            mask[1, 4:] = 0
            return mask
        if name == "position_ids":
            return torch.arange(SEQUENCE).expand(shape).contiguous()
        return torch.randint(0, 2, shape) if "type" in name else torch.randint(2, 90, shape)
