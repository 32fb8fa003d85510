"""What ONNX Runtime does otherwise than ONNX says, or than it does elsewhere, and who follows it.

Each was seen in a version of the program. `tests/onnx/test_quirks.py` has a small model that shows
it, and fails in the first version in which it does not: once no supported version has the quirk,
what follows it can go.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Quirk:
    """One of them.

    Args:
        name: Of its test.
        what: What ONNX Runtime does.
        follows: Who knows of it: a module of `pitc`, and a name in it.
        since: The first version that was seen to do it; empty: the oldest that is supported.
        until: The first version that was seen to do it no more; empty: none.
    """

    name: str
    what: str
    follows: str
    since: str = ""
    until: str = ""


QUIRKS = (
    Quirk("flags", "flags are set where they are 1 only", "passes.quirks.rewrites:plain_flags"),
    Quirk(
        "range of vectors",
        "operands of Range of shape [1] are refused where they are all known before the run",
        "passes.quirks.rewrites:scalar_range_operands",
    ),
    Quirk(
        "early quantisation",
        "a quantisation goes in front of what only moves elements, up to a node without a type",
        "passes.quirks.early_quantise:quantise_early",
    ),
    Quirk("no Where", "Where has no kernel for some types on CPUs", "ir.quirks:SELECTED_AS"),
    Quirk("no Where of int8", "nor for int8 and uint32", "ir.quirks:SELECTED_AS", until="1.31.1"),
    Quirk("windows", "none starts behind the last place", "ir.quirks:COUNTED_OTHERWISE"),
    Quirk("range of floats", "counted in doubles", "ir.quirks:COUNTED_OTHERWISE", since="1.31.1"),
    Quirk("squeeze of none", "no axes are all of one place", "passes.rules.movement:squeeze"),
    Quirk(
        "rest beside 0",
        "a Reshape to 0 and -1 divides what is not 0 by what is not 0",
        "passes.rules.remains:remaining",
        since="1.31.1",
    ),
    Quirk("ends of slices", "backwards, the largest is the first", "passes.rules.movement:LARGEST"),
    Quirk("joined with nothing", "a Concat skips what is empty", "passes.rules.movement:_beside"),
    Quirk("batches of places", "may be more than the batches", "passes.rules.gather:gather_nd"),
    Quirk("beta of 0", "a Gemm does not read C then, NaN or not", "passes.expand.product:gemm"),
    Quirk("groups of nothing", "no images are refused", "passes.expand.rows:group_norm"),
    Quirk(
        "masked scores",
        "scores that Attention gives behind its mask are the lowest number, not -inf",
        "passes.expand.standard:standard_attention",
        since="1.27.0",
    ),
    Quirk("trips of loops", "have the body's shape [1]", "passes.control.bodies:first_shapes"),
    Quirk("own operators", "go before functions", "passes.normalise:inline_functions"),
    Quirk("halves", "float16 nodes of CPUs leave out roundings in between", "passes.fold:TYPES"),
    Quirk(
        "halves of groups",
        "are rounded: the kernel is one of float16",
        "ir.quirks:OF_HALVES",
        since="1.27.0",
    ),
)

OF_HALVES = frozenset({("com.microsoft", "GroupQueryAttention")})
"""Operators of which the CPU provider has a kernel of float16, that computes in float32 inside: it
reads float16, and rounds what it gives.
"""

COUNTED_OTHERWISE = frozenset(
    {
        *("Attention", "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool"),
        *("MaxPool", "QLinearConv", "Range", "Resize", "Upsample"),
    }
)
"""Operators of whose results inference counts other places in some forms: windows that are rounded
up, padded by less than nothing or dilated, aspect ratios, quotients of floats, keys behind past
ones of which inference does not know how many there are.
"""

SELECTED_AS = {
    **{t: t for t in ("bool", "float32", "float64", "int32", "int64", "uint8")},
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
    **dict.fromkeys(("int8", "int16", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
}
"""Types of elements that can be made 0 at some points, and one for which every version has a Where
(of bool: an And), and that holds the same values.
"""


def can_be_zeroed(dtype: np.dtype | None) -> bool:
    """True for elements that can be made 0 at some points."""
    return dtype is not None and dtype.name in SELECTED_AS
