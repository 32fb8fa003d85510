"""What commands print for programs, and warnings."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pitc.errors import PitcWarning
from pitc.ir.json_text import json_text


def print_json(body: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    print(json_text(body))


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show pitc's own warnings as one line each on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PitcWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, PitcWarning):
            print(f"warning: {warning.message}", file=sys.stderr)
