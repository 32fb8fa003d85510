"""Constants that a model has in float16 and a graph in float32."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from pitc.ir.nodes import Array

NARROW, WIDE = ir.DataType.FLOAT16, ir.DataType.FLOAT


class Widened(ir.LazyTensor):
    """A float32 constant of numbers that float16 holds.

    Args:
        make: Gives the numbers, in any type.
        shape: Its dimensions.
        name: Its name.
    """

    def __init__(self, make: Callable[[], Array], shape: ir.Shape, name: str) -> None:
        super().__init__(
            lambda: ir.tensor(make().astype(np.float32)), WIDE, shape, name=name, cache=False
        )
        self._make, self._shape = make, shape

    def half(self, name: str) -> ir.LazyTensor:
        """The same numbers as float16."""
        make = self._make
        return ir.LazyTensor(
            lambda: ir.tensor(make().astype(np.float16)), NARROW, self._shape, name=name
        )
