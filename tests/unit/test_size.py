"""Budgets of rooms, and the count of files that some work enters."""

from pathlib import Path

import pytest

from pitc.ir import poly
from tools import size
from tools.parts import ROOT


def test_every_room_keeps_its_budget() -> None:
    known, found = size.budgets(), size.lines()
    assert known.keys() == found.keys()
    assert {room: n for room, n in found.items() if n > known[room]} == {}


def test_a_room_beyond_its_budget_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size.main([]) == 0
    lines = size.lines()
    monkeypatch.setattr(size, "lines", lambda: lines | {"passes": size.budgets()["passes"] + 1})
    assert size.main([]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if "too many" in line]
    assert len(told) == 1 and told[0].startswith("passes ")


def test_files_are_entered_where_their_functions_run() -> None:
    assert size.entered(lambda: None) == set()
    number = poly.Poly({(): 3})
    assert size.entered(lambda: number + number) == {ROOT / "pitc/ir/poly.py"}
    assert size.room_of(Path(ROOT, "pitc/ir/poly.py")) == "pitc/ir"
