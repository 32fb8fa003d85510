"""Weights as panels: the layout that kernels read them from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from pitc.ir.nodes import ORDERED, PARTS, Array
from pitc.ir.panels import PANEL_WIDTH, pack_panels, pair_panels, panel_count
from pitc.ir.widened import Widened
from pitc.passes.lower.builder import Builder
from pitc.passes.regions.matrix import Matrix

Axes = tuple[int, ...]
_TO_INFINITY = np.float32(float.fromhex("0x1.ffp127"))
"""Half a step above the largest bfloat16: what is as large is rounded to infinity."""


@dataclass(slots=True)
class Panels:
    """Weights that a compiled graph holds as panels.

    Args:
        made: Panels by what they are of: the weight's name, whether it is transposed, its sizes.
        rounded: Those of bfloat16.
        stacks: Of many matrices each, by the constant's name, its axes, and their extents.
        rounded_stacks: Those of bfloat16.
        parts: Of constants that hold several of the source graph, the names of these, in order.
        ordered: Of constants that hold the rows of one of the source graph, its name, and which row
            each is.
    """

    made: dict[tuple[str, bool, int, int], ir.Value] = field(default_factory=dict)
    rounded: dict[tuple[str, bool, int, int], ir.Value] = field(default_factory=dict)
    stacks: dict[tuple[str, Axes, Axes], ir.Value] = field(default_factory=dict)
    rounded_stacks: dict[tuple[str, Axes, Axes], ir.Value] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ordered: dict[str, tuple[str, Array]] = field(default_factory=dict)

    def add(self, other: "Panels") -> None:
        """Those of another graph, too."""
        self.made |= other.made
        self.stacks |= other.stacks
        self.parts |= other.parts
        self.ordered |= other.ordered

    def value(self, build: Builder, weight: Matrix, *, rounded: bool = False) -> ir.Value:
        """The panels of a constant, made once and computed when they are written.

        Args:
            build: Adds nodes.
            weight: The constant.
            rounded: To bfloat16, in pairs of rows.
        """
        key = (weight.value.name or "", weight.transposed, weight.k, weight.n)
        if rounded:
            return self._rounded(build, weight, key)
        if key not in self.made:
            tensor = weight.value.const_value  # by then it may be in the artifact
            assert tensor is not None
            make = partial(_panels, weight, tensor)
            shape = (panel_count(weight.n), weight.k, PANEL_WIDTH)
            halves = isinstance(tensor, Widened)
            self.made[key] = build.lazy_constant(
                f"{key[0]}.panels", make, shape, tensor.dtype, halves=halves
            )
        return self.made[key]

    def stack(
        self, build: Builder, table: ir.Value, axes: Sequence[int], *, rounded: bool = False
    ) -> ir.Value:
        """The panels of many matrices, those of the first one in front.

        Args:
            build: Adds nodes.
            table: A constant of three dimensions.
            axes: Which of these counts matrices, which their rows, which their columns.
            rounded: To bfloat16, in pairs of rows.
        """
        tensor = table.const_value  # by then it may be in the artifact
        assert tensor is not None
        sizes = [int(d) for d in tensor.shape.numpy()]
        groups, k, n = (sizes[d] for d in axes)
        key, count = (table.name or "", tuple(axes), (groups, k, n)), panel_count(n)
        made = self.rounded_stacks if rounded else self.stacks
        if PARTS in table.meta:
            self.parts[key[0]] = table.meta[PARTS]
        if ORDERED in table.meta:
            self.ordered[key[0]] = table.meta[ORDERED]
        if key not in made:
            pack = pair_panels if rounded else partial(pack_panels, dtype=tensor.dtype.numpy())
            shape = (count, -(-k // 2), 2 * PANEL_WIDTH) if rounded else (count, k, PANEL_WIDTH)
            made[key] = build.lazy_constant(
                f"{key[0]}.{'bfloat16' if rounded else 'panels'}",
                partial(_stack, tensor, axes, pack),
                (groups * count, *shape[1:]),
                ir.DataType.BFLOAT16 if rounded else tensor.dtype,
                halves=isinstance(tensor, Widened) and not rounded,
            )
        return made[key]

    def _rounded(self, build: Builder, weight: Matrix, key: tuple[str, bool, int, int]) -> ir.Value:
        if key not in self.rounded:
            tensor = weight.value.const_value
            assert tensor is not None
            make = partial(_pairs, weight, tensor)
            shape = (panel_count(weight.n), -(-weight.k // 2), 2 * PANEL_WIDTH)
            stem = f"{key[0]}.bfloat16"
            self.rounded[key] = build.lazy_constant(stem, make, shape, ir.DataType.BFLOAT16)
        return self.rounded[key]


def _stack(tensor: ir.TensorProtocol, axes: Sequence[int], pack: Callable[[Array], Array]) -> Array:
    stack = tensor.numpy().transpose(axes)
    first = pack(stack[0])
    out = np.empty((len(stack), *first.shape), first.dtype)  # concatenate would hold all twice
    for number, matrix in enumerate(stack):
        out[number] = pack(matrix)
    return out.reshape(-1, *first.shape[1:])


def _panels(weight: Matrix, tensor: ir.TensorProtocol) -> Array:
    w = _matrix(weight, tensor)
    return pack_panels(w, w.dtype)


def _pairs(weight: Matrix, tensor: ir.TensorProtocol) -> Array:
    return pair_panels(_matrix(weight, tensor))


def _matrix(weight: Matrix, tensor: ir.TensorProtocol) -> Array:
    w = tensor.numpy()
    return w.reshape(weight.n, weight.k).T if weight.transposed else w.reshape(weight.k, weight.n)


def stay_finite(weight: ir.Value) -> bool:
    """True where no finite number of a constant becomes infinite when it is rounded to bfloat16."""
    tensor = weight.const_value
    assert tensor is not None
    size = np.abs(tensor.numpy())
    return not ((size >= _TO_INFINITY) & (size < np.inf)).any()


def padded_bias(build: Builder, bias: ir.Value | None, n: int) -> ir.Value:
    """A constant bias of n numbers, or none, as float32 and as long as all panels of n columns."""
    count = panel_count(n) * PANEL_WIDTH
    tensor = None if bias is None else bias.const_value

    def make() -> Array:
        padded = np.zeros(count, np.float32)
        if tensor is not None:
            padded[:n] = tensor.numpy().reshape(-1)
        return padded

    if bias is None:
        return build.constant(make())
    return build.lazy_constant(f"{bias.name}.padded", make, (count,))
