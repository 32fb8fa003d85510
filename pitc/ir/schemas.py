"""The operators that ONNX Runtime has."""

import importlib
from functools import cache
from typing import Any


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
def _by_name() -> dict[tuple[str, str], list[Any]]:
    runtime = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in runtime.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found
