"""JSON as the command line prints it, and as results in Python give it."""

import json
import math
from collections.abc import Mapping
from typing import Any

#: Version of what `--json` prints.
JSON_SCHEMA = 1


def json_text(body: Mapping[str, Any]) -> str:
    """One JSON object with its schema. NaN and infinities, which JSON lacks, become null."""
    return json.dumps({"schema": JSON_SCHEMA} | _finite(dict(body)), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
