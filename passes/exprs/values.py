"""Small integer tensors as symbols, element by element: what exporters compute shapes with.

They are numpy object arrays of polynomials; bools are 0 and 1.
"""

import numpy as np

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import Array, NodeView, NoRule
from pitc.ir.index import Poly, fits
from pitc.passes.rules.record import operator_of
from pitc.passes.rules.values import Unknown

SMALL_VALUE = 64  # elements


def small_value(view: NodeView, expr: TensorExpr) -> Array | None:
    """The symbolic value of the node's first output, computed on arrays of polynomials.

    Args:
        view: A node whose operands' values are known or not.
        expr: The output's expression: its shape is needed by some operators.

    Returns:
        An object array of polynomials (0 and 1 for bools), or None.
    """
    rule = operator_of(view).value
    dtype = view.out_dtype()
    if rule is None or dtype is None or dtype.kind not in "iub":
        return None
    sizes = [e.as_int() for e in expr.shape]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes) or int(np.prod(known, dtype=np.int64)) > SMALL_VALUE:
        return None
    try:
        value = np.asarray(rule(view, tuple(known)), object)
    except (NoRule, Unknown, ValueError, IndexError):
        return None
    if value.shape != tuple(known) or not all(_fits(p, dtype) for p in value.flat):
        return None
    return value


def _fits(p: Poly, dtype: np.dtype) -> bool:
    """True where a type can hold the number for all sizes: it has not wrapped around."""
    if dtype.kind == "b":
        return p.as_int() in (0, 1)
    info = np.iinfo(dtype)
    return fits(p, int(info.min), int(info.max))
