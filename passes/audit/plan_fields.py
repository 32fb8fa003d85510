"""What each plan consists of: its fields, and its operands (`docs/plans.md`)."""

import re
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

COSTS = re.compile(r"(cost|shape)_\w+_v\d|(clocks|price_\w+)_sm_\d+")
FLAG, NUMBER, REAL, NUMBERS = r"[01]", r"\d+", r"-?\d+|-?0x[0-9a-f.]+p[+-]?\d+", r"\d+(,\d+)*"
WORD, WORDS, CODES = r"[\w.:-]+", r"[^,\s]+(,[^,\s]+)*", r"(c\d|l|0|r)(,(c\d|l|0|r))*"
NAME = r"[A-Za-z0-9%._~/-]+"
_STEPS = {
    **dict.fromkeys(("score_above", "score_below", "weight_above"), NUMBER),
    **dict.fromkeys(("score_scale", "score_step", "weight_step"), REAL),
}
#: Fields that a plan may lack.
OPTIONAL = {"detect": {"padding"}, "attention": {"whole", *_STEPS}}
_LIBRARY = {"kernel": WORD, "library": WORD}
_MOVE = {**_LIBRARY, "dims": CODES, "dtype": "int32|int8"}
_KERNEL = {**_LIBRARY, "dtype": "float32|float16|bfloat16"}
_PRODUCT = {**_KERNEL, "activation": WORD, "bias": FLAG, "k": NUMBER, "n": NUMBER, "residual": FLAG}
_ROWS = {**_PRODUCT, "gather": FLAG, "scatter": FLAG}
#: The fields of each plan, and how they are written (docs/plans.md).
FIELDS: Mapping[str, Mapping[str, str]] = {
    "detect": {"rank": NUMBER, "padding": NAME},
    "pack": _MOVE,
    "unpack": _MOVE,
    "gather_gemm": _ROWS,
    "contract": {**_ROWS, "input_relu": FLAG},
    "ffn": {**_ROWS, "inner": NUMBER, "inner_activation": WORD, "inner_bias": FLAG},
    "contract_right": {**_PRODUCT, "factor": "0|1|2", "stored": "kn|nk"},
    "attention": {
        **_KERNEL,
        **dict.fromkeys(("d", "dv", "heads", "q_head", "k_head", "v_head"), NUMBER),
        **{"bias": FLAG, "nan_to_zero": FLAG, "no_keys_to_zero": FLAG, "scale": REAL},
        **_STEPS,
        "whole": FLAG,
    },
    "choose_channels": {
        **{"budget": NUMBER, "channels": NUMBERS, "weights": NUMBERS},
        **{"nodes": WORDS, "places": r"(all|\d+)(,(all|\d+))*"},
    },
    "region": {**_LIBRARY, "gives": NUMBERS, "steps": NUMBER},  # and those of each step
}
F32, I32 = ir.DataType.FLOAT, ir.DataType.INT32
OWN = ir.DataType.UNDEFINED  # what the plan computes with
#: Operands of each plan: name, type (None: any that can be moved), and the fields that ask for it.
OPERANDS: Mapping[str, tuple[tuple[str, ir.DataType | None, tuple[str, ...]], ...]] = {
    "detect": (("live", None, ()), ("padding", None, ("padding",))),
    "pack": (("x", None, ()), ("rows", I32, ()), ("coords", I32, ()), ("live", None, ())),
    "contract_right": (
        *(("a", OWN, ()), ("s", OWN, ()), ("factor", OWN, ("factor",))),
        *(("bias", F32, ("bias",)), ("residual", OWN, ("residual",))),
    ),
    "gather_gemm": (
        *(("a", OWN, ()), ("b", OWN, ()), ("bias", F32, ("bias",))),
        ("residual", OWN, ("residual",)),
        *(("rows", I32, ("gather", "scatter")), ("live", None, ("gather", "scatter"))),
    ),
    "ffn": (
        *(("a", OWN, ()), ("b1", OWN, ()), ("bias1", F32, ("inner_bias",))),
        *(("b2", OWN, ()), ("bias", F32, ("bias",)), ("residual", OWN, ("residual",))),
        *(("rows", I32, ("gather", "scatter")), ("live", None, ("gather", "scatter"))),
    ),
    "attention": (
        *(("q", OWN, ()), ("k", OWN, ()), ("v", OWN, ())),
        *(("q_offsets", I32, ()), ("k_offsets", I32, ()), ("bias", F32, ("bias",))),
        *(("q_coords", I32, ("bias",)), ("k_coords", I32, ("bias", "whole"))),
        ("live", None, ("whole",)),
    ),
    "choose_channels": (("flags", F32, ()),),
}
SAME_OPERANDS = {"unpack": "pack", "contract": "gather_gemm"}


def wrong_fields(op: str, fields: Mapping[str, str], symbols: Collection[str]) -> Iterator[str]:
    """Violations of the fields of a plan.

    Args:
        op: Its operation.
        fields: The others.
        symbols: Kernels that were asked for.
    """
    wanted = FIELDS[op]
    found = {k: v for k, v in fields.items() if not COSTS.fullmatch(k)}
    lacking = wanted.keys() - found.keys() - OPTIONAL.get(op, set())
    if lacking or found.keys() - wanted.keys():
        yield f"plan {op} has the fields {sorted(found)}, not {sorted(wanted)}"
    for key, value in found.items():
        if key in wanted and not re.fullmatch(wanted[key], value):
            yield f"plan {op}: {key}={value}"
    if "kernel" in wanted and fields.get("kernel") not in symbols:
        yield f"nobody asked for the kernel {fields.get('kernel')}"


def kinds_of(op: str, fields: Mapping[str, str]) -> dict[str, ir.DataType | None]:
    """The operands of a plan by name, and their types (see `OPERANDS`)."""
    wanted = OPERANDS[SAME_OPERANDS.get(op, op)]
    return {
        name: kind
        for name, kind, by in wanted
        if not by or any(fields.get(f, "0") != "0" for f in by)
    }
