"""Along which dimension of its result a node has few elements that are not 0, in every run: one for
each index of a one-hot tensor, and one for each that is written into zeros.

    one_hot[t, d] == 0 but at d = ids[t]            dimension 1, at most 1
    zeros[t, ids[t, j]] = x[t, j], j < 2            dimension 1, at most 2
"""

import numpy as np

from pitc.ir.constant import is_zero
from pitc.ir.graph import NodeView
from pitc.passes.rules.build import dimension

Few = tuple[int, int]
"""A dimension of the result, and how many elements of a line along it may be others than 0."""


def of_one_hot(view: NodeView) -> Few | None:
    """Of OneHot, where all other places hold 0."""
    numbers, shape = view.array(2), view.graph[view.out()].shape
    if numbers is None or numbers.size != 2 or not is_zero(numbers.reshape(-1)[0].item()):
        return None
    return None if shape is None else (dimension(int(view.attr("axis", -1)), len(shape)), 1)


def of_numbers(view: NodeView) -> Few | None:
    """Of Equal, one operand of which counts along a dimension that the other one has not:
    `arange(n) == x[.., None]`.
    """
    for i in (0, 1):
        numbers, other = view.array(i), view.graph[view.name(1 - i)].shape
        if numbers is None or other is None or numbers.dtype.kind not in "iu":
            continue
        rank = max(len(other), numbers.ndim)
        long = [d for d, e in enumerate(numbers.shape) if e > 1]
        if len(long) != 1 or len(np.unique(numbers)) != numbers.size:
            continue
        axis = long[0] + rank - numbers.ndim
        behind = axis - (rank - len(other))
        if behind < 0 or other[behind].as_int() == 1:
            return axis, 1
    return None


def of_written(view: NodeView) -> Few | None:
    """Of ScatterElements into zeros: a line gets an element for each of its indices."""
    start, shape = view.name(0), view.graph[view.name(1)].shape
    if shape is None or not _is_zero_everywhere(view, start):
        return None
    axis = dimension(int(view.attr("axis", 0)), len(shape))
    most = shape[axis].as_int()
    return None if most is None else (axis, most)


def _is_zero_everywhere(view: NodeView, name: str) -> bool:
    number = view.graph.splat(name)
    known = [f.constant for f in view.graph[name].fills if not f.region]
    return any(is_zero(c) for c in (*known, *([] if number is None else [number])))
