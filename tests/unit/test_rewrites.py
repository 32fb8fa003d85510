"""Which parts of a module are exported in another form; what the forms compute needs torch, and is
checked in tests/integrations/check_windows.py.
"""

import sys
from collections.abc import Iterator
from types import MethodType, ModuleType
from typing import Any

import pytest

from pitc.frontends import rewrites
from pitc.frontends.rewrites import REWRITES, Rewrite, added_inputs, rewritten


class Weights:
    """A tensor that must not be copied."""

    def __deepcopy__(self, _: object) -> "Weights":
        raise AssertionError("copied")


class Part:
    """What is asked of a module of torch."""

    def __init__(self, *parts: "Part") -> None:
        self.parts, self.weights, self.table = parts, Weights(), Weights()

    def modules(self) -> Iterator["Part"]:
        yield self
        for part in self.parts:
            yield from part.modules()

    def parameters(self) -> Iterator[Weights]:
        return (part.weights for part in self.modules())

    def buffers(self) -> Iterator[Weights]:
        return (part.table for part in self.modules())

    def forward(self, x: int) -> int:
        return x


class Attention(Part):
    pass


class Subclass(Attention):
    pass


class Model(Part):
    def pad(self, x: int) -> int:
        return x


def negated(_: Any, x: int) -> int:
    return -x


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ModuleType("place")
    vars(place).update(Attention=Attention, Model=Model)
    monkeypatch.setitem(sys.modules, "place", place)
    rows = (
        Rewrite("place", "Attention", "forward", negated),
        Rewrite("place", "Model", "pad", negated, ("tokens",)),
        Rewrite("place", "Gone", "forward", negated),  # as in another version
        Rewrite("never.imported", "Attention", "forward", negated),
    )
    monkeypatch.setattr(rewrites, "REWRITES", rows)


def test_a_copy_shares_tensors() -> None:
    attention = Attention()
    model = Model(Part(attention), Part())
    copy = rewritten(model)
    assert copy is not model and copy.parts[0] is not model.parts[0]
    assert list(copy.parameters()) == list(model.parameters())
    assert list(copy.buffers()) == list(model.buffers())
    assert (copy.pad(3), copy.parts[0].parts[0].forward(3)) == (-3, -3)
    assert (copy.forward(3), copy.parts[1].forward(3)) == (3, 3)
    assert (model.pad(3), attention.forward(3)) == (3, 3)
    assert added_inputs(model) == ("tokens",)


def test_other_modules_are_not_copied() -> None:
    model = Part(Part())
    assert rewritten(model) is model and added_inputs(model) == ()


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_is_not_known_stays_with_all_around_it(wrapped: bool) -> None:
    """A subclass, and a method that somebody has put in its place, may compute something else."""
    part = Attention() if wrapped else Subclass()
    if wrapped:
        vars(part)["forward"] = MethodType(negated, part)
    model = Model(Attention(), part)
    assert rewritten(model) is model and added_inputs(model) == ()


def test_rows_of_one_place_stand_together() -> None:
    places = [row.place for row in REWRITES]
    assert places == sorted(places, key=places.index)


class Settings:
    """A configuration of transformers."""

    def __init__(self, experts: str | None) -> None:
        self._experts_implementation = experts


class Experts(Part):
    """A layer of experts that runs in the form that its configuration names."""

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config

    def _apply_gate(self, x: int) -> int:
        return x


@pytest.mark.parametrize("form", ["grouped_mm", "eager", None])
def test_experts_run_in_the_form_that_can_be_exported(form: str | None) -> None:
    """All layers share one configuration, which is not changed."""
    config = Settings(form)
    model = Part(Experts(config), Experts(config))
    first, second = rewritten(model).parts
    assert first.config is second.config and first.config is not config
    assert (first.config._experts_implementation, config._experts_implementation) == (
        "batched_mm",
        form,
    )


def test_experts_in_that_form_are_not_copied() -> None:
    model = Part(Experts(Settings("batched_mm")))
    assert rewritten(model) is model
    model.config = Settings("eager")  # type: ignore[attr-defined]  # of a layer without experts
    assert rewritten(model) is model
