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


def lazy(
    make: Callable[[], Array], dtype: ir.DataType, shape: ir.Shape, name: str, *, halves: bool
) -> ir.LazyTensor:
    """A constant that is computed when it is written.

    Args:
        make: Gives the numbers.
        dtype: Its type.
        shape: Its dimensions.
        name: Its name.
        halves: The numbers are float16's, of a float32 constant.
    """
    if halves:
        return Widened(make, shape, name)
    return ir.LazyTensor(lambda: ir.tensor(make()), dtype, shape, name=name)


def mentions_float16(model: ir.Model) -> bool:
    """Whether an input, a weight or an attribute of a model without functions says float16. Without
    any nothing is: no operator makes it of other types unless it is told to.
    """
    for graph in model.graphs():
        values = [*graph.inputs, *(x.const_value for x in graph.initializers.values())]
        if any(x is not None and x.dtype == NARROW for x in values):
            return True
        if any(_may_say(a) for node in graph for a in node.attributes.values()):
            return True
    return False


def _may_say(attribute: ir.Attr) -> bool:
    """Whether an attribute names float16, as a number or as old operators do, or may hold it."""
    match attribute.type.name:
        case "INT" | "STRING":
            return attribute.value in (NARROW, NARROW.name)
        case "TENSOR":
            return attribute.as_tensor().dtype == NARROW
        case kind:  # bodies are looked at
            return kind not in ("FLOAT", "FLOATS", "GRAPH", "GRAPHS", "INTS", "STRINGS")
