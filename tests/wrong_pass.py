"""A pass that does the wrong thing, on purpose."""

from typing import Any

import pytest

from pitc import api


def replace_operator(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    """From now on every compiled graph has the wrong operator instead of the right one."""
    real = api._write

    def write(folder: Any, lowered: Any, *rest: Any) -> None:
        for one in lowered.values():
            for node in one.model.graph:
                if node.op_type == right:
                    node.op_type = wrong
        real(folder, lowered, *rest)

    monkeypatch.setattr(api, "_write", write)
