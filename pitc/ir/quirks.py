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
        follows: The module, and in it the name of what knows it.
        since: The first version that was seen to do it; empty: the oldest that is supported.
        until: The first version that was seen to do it no more; empty: none.
    """

    name: str
    what: str
    follows: str
    since: str = ""
    until: str = ""


_MOVEMENT, _REWRITES = "pitc.passes.rules.movement", "pitc.passes.quirks.rewrites"

QUIRKS = (
    Quirk("flags", "a flag is set where it is 1: keepdims = 2 is 0", f"{_REWRITES}:plain_flags"),
    Quirk(
        "range of vectors",
        "operands of Range of shape [1] are taken in a run, and not where loading knows them all",
        f"{_REWRITES}:scalar_range_operands",
    ),
    Quirk(
        "early quantisation",
        "a quantisation moves in front of what only moves elements, up to a node without a type",
        "pitc.passes.quirks.early_quantise:quantise_early",
    ),
    Quirk("no Where", "Where has no kernel for some types on CPUs", "pitc.ir.quirks:SELECTED_AS"),
    Quirk(
        "no Where of int8",
        "Where has no kernel for int8 and uint32 on CPUs",
        "pitc.ir.quirks:SELECTED_AS",
        until="1.31.1",
    ),
    Quirk(
        "windows",
        "a window that is rounded up does not start behind the last place",
        "pitc.ir.quirks:COUNTED_OTHERWISE",
    ),
    Quirk(
        "range of floats",
        "the places of a Range are counted in another type than float32",
        "pitc.ir.quirks:COUNTED_OTHERWISE",
        since="1.31.1",
    ),
    Quirk(
        "squeeze of none",
        "a Squeeze of no axes drops all that have one place",
        f"{_MOVEMENT}:squeeze",
    ),
    Quirk(
        "rest beside 0",
        "a Reshape to 0 and -1 divides what is not 0 by what is not 0",
        f"{_MOVEMENT}:_divides_beside_0",
        since="1.31.1",
    ),
    Quirk(
        "ends of slices",
        "backwards, the largest end is one before the first place",
        f"{_MOVEMENT}:LARGEST",
    ),
    Quirk(
        "joined with nothing",
        "a Concat does not look at the sizes of what has no elements",
        f"{_MOVEMENT}:_beside",
    ),
    Quirk(
        "batches of places",
        "a GatherND takes more batches of places than there are batches",
        "pitc.passes.rules.gather:gather_nd",
    ),
    Quirk(
        "beta of 0",
        "a Gemm with beta = 0 does not read C, NaN or not",
        "pitc.passes.expand.product:gemm",
    ),
    Quirk(
        "groups of nothing",
        "a GroupNormalization of no images fails",
        "pitc.passes.expand.rows:group_norm",
    ),
    Quirk(
        "masked scores",
        "scores that Attention gives after the mask are the lowest number, not -inf",
        "pitc.passes.expand.standard:standard_attention",
        since="1.27.0",
    ),
    Quirk(
        "trips of loops",
        "the number of a Loop's trip has shape [1] where the body declares it so",
        "pitc.passes.control.bodies:first_shapes",
    ),
    Quirk(
        "own operators",
        "a model's function of the name of an operator that it has is not run",
        "pitc.passes.normalise:inline_functions",
    ),
    Quirk(
        "halves",
        "between float16 nodes roundings are left out on CPUs",
        "pitc.passes.fold:TYPES",
    ),
)

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
