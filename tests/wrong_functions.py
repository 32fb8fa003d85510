"""Functions that are wrong in one place: what checks find such twins of right ones?"""

import inspect
import textwrap
import types
from typing import Any

import pytest


def make_wrong(monkeypatch: pytest.MonkeyPatch, function: Any, right: str, wrong: str) -> None:
    """Let a function compute something else, wherever it is called, until the test ends.

    Args:
        monkeypatch: Puts its code back.
        function: It uses no variables of an enclosing function.
        right: Stands in its source once.
        wrong: Stands there instead.
    """
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1
    module = compile(source.replace(right, wrong), function.__qualname__, "exec")
    code = next(x for x in module.co_consts if isinstance(x, types.CodeType))
    monkeypatch.setattr(function, "__code__", code)
