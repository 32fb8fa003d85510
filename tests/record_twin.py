"""Wrong twins of operator records, for the time of a test."""

from dataclasses import fields, replace
from typing import Any

import pytest

from pitc.passes.rules.record import OPERATORS, Elementwise

FUNCTION = {f.name for f in fields(Elementwise)}


def twin(monkeypatch: pytest.MonkeyPatch, op: str, domain: str = "", **columns: Any) -> None:
    """Give an operator other columns, its own or those of the function that it computes."""
    row = OPERATORS[domain, op]
    inner = {name: columns.pop(name) for name in FUNCTION & columns.keys()}
    if inner:
        assert row.function is not None
        columns["function"] = replace(row.function, **inner)
    monkeypatch.setitem(OPERATORS, (domain, op), replace(row, **columns))
