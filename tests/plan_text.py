"""Plans as plain keys and values: also those that no compiler writes."""

from collections.abc import Mapping
from dataclasses import dataclass

from pitc.ir.kernel import KernelRequest
from pitc.ir.plan import PLAN_VERSION

Field = int | float | str | tuple[int, ...] | tuple[str, ...]

USUAL: Mapping[str, Field] = {
    **{"activation": "none", "dtype": "float32", "library": "kernels.so", "right": "panels"},
    **dict.fromkeys(("bias", "factor", "gather", "inner_bias", "input_relu"), 0),
    **dict.fromkeys(("residual", "scatter", "skips", "tiles"), 0),
}
"""Fields of a contraction that does nothing else."""


def _text(value: Field) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.hex() if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation and its other fields, as the runtime reads them."""

    op: str
    fields: tuple[tuple[str, Field], ...] = ()

    def text(self) -> str:
        fields = dict(self.fields) | {"op": self.op}
        lines = [f"{key}={_text(fields[key])}" for key in sorted(fields)]
        return "\n".join([f"pitc-plan {PLAN_VERSION}", *lines, ""])


def contract_plan(kind: str = "cpu", /, **fields: Field) -> Plan:
    """A contraction: fields that are not given are as usual, kernels as those demand."""
    given: dict[str, Field] = {**USUAL, **fields}
    return Plan("contract", tuple({"kernels": contract_kernels(given, kind), **given}.items()))


def contract_kernels(fields: Mapping[str, Field], kind: str = "cpu") -> str:
    """The kernels of a contraction by what they are for, as a plan says them."""
    dtype, k, n = str(fields["dtype"]), int(str(fields["k"])), int(str(fields["n"]))
    skips, right, inner = fields["skips"], str(fields["right"]), fields.get("inner")
    epilogue = {"activation": str(fields["activation"]), "residual": int(str(fields["residual"]))}
    relu = {"input_relu": 1} if fields["input_relu"] else {}
    found: dict[str, str] = {}

    def add(role: str, family: str, **params: int | str) -> None:
        found[role] = KernelRequest.of_kind(kind, family, dtype, **params).symbol

    stored = {} if right == "panels" else {"stored": right, "factor": int(bool(fields["factor"]))}
    add("dense", "gather_gemm", k=k, n=n, **relu, **epilogue, **stored)
    if inner:
        front = {"k": int(str(inner)), "n": k, "activation": "relu", "residual": 0, "bits": 1}
        add("inner", "gather_gemm", **front)
    if fields["tiles"]:
        plain = {"activation": "none", "residual": 0, **stored}
        add("block", "contract_block", k=k, n=n, **plain)
    elif skips and kind == "cpu":
        of = {"k": k, "n": n, **epilogue}
        of |= {"n": 128, "activation": "none", "residual": 0} if stored else {}
        for role in ("row", "tile", "block"):
            add(role, f"contract_{role}", **of)
    elif skips:
        add("detect", "detect", **({"bits": 1} if inner else {"k": k}))
        add("choose", "choose")
        add("lists", "lists", k=k)
        add("tile", "contract_tile", n=n, **epilogue)
        add("block", "contract_block", n=n, **epilogue)
        add("square", "contract_square", k=k, n=n, **epilogue)
    if stored and not fields["tiles"]:
        add("panels", "panels", k=k)
        add("swrite", "swrite_columns", n=n, **epilogue)
        if right == "kn" or fields["factor"]:
            add("rows", "stored_rows", k=k, n=n, stored=right, factor=int(str(fields["factor"])))
    return ",".join(f"{role}:{symbol}" for role, symbol in found.items())
