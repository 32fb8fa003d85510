"""The operators that ONNX Runtime has."""

import importlib
from functools import cache
from typing import Any

#: What a schema does not say: a result is of the type that its zero point has.
TYPED_BY = {("com.microsoft", "QGemm"): (8,)}


def schema_of(domain: str, op: str, version: int) -> Any:
    """ONNX Runtime's own description of an operator.

    Args:
        domain: The operator's domain, "" for the standard one.
        op: Its type.
        version: Version of the domain's operator set.

    Returns:
        The newest schema up to that version (`inputs`, `outputs`, ..); None where it has none.
    """
    found = [s for s in _by_name().get((domain, op), ()) if s.since_version <= version]
    return max(found, key=lambda s: int(s.since_version), default=None)


@cache
def places_of_types(domain: str, op: str, version: int) -> tuple[int | None, ...]:
    """For each output the first input whose element type it has; None where no tensor has it."""
    schema = schema_of(domain, op, version)
    if schema is None or (domain, op) in TYPED_BY:
        return TYPED_BY.get((domain, op), ())
    inputs = [formal.typeStr if formal.isHomogeneous else "" for formal in schema.inputs]
    tensors = [all(t.startswith("tensor(") for t in formal.types) for formal in schema.outputs]
    return tuple(
        inputs.index(formal.typeStr) if tensor and formal.typeStr in inputs else None
        for formal, tensor in zip(schema.outputs, tensors, strict=True)
    )


@cache
def _by_name() -> dict[tuple[str, str], list[Any]]:
    runtime = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in runtime.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found
