"""What commands print for programs, and warnings."""

import json as jsonlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pitc.errors import PitcWarning

#: Version of what `--json` prints.
JSON_SCHEMA = 1


def print_json(body: Mapping[str, Any]) -> None:
    """One JSON object on stdout. NaN and infinities, which JSON lacks, become null."""
    print(jsonlib.dumps({"schema": JSON_SCHEMA} | _finite(dict(body)), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show pitc's own warnings as one line each on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PitcWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, PitcWarning):
            print(f"warning: {warning.message}", file=sys.stderr)
