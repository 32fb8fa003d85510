"""Random inputs: sizes named as sums of others, lengths of caches, switches between branches."""

import numpy as np
import onnx_ir as ir
import pytest

from models.graph import GraphBuilder
from pitc.check.feeds import PATTERNS, InputSpec, cases, input_specs, parse_shapes, sizes_of
from pitc.check.probes import MOST, probes
from pitc.errors import UsageError
from pitc.ir.index import dim_index, sym
from pitc.ir.region import Test
from tests.fact_check import built

INT, FLOAT, BOOL = np.dtype(np.int64), np.dtype(np.float32), np.dtype(bool)
NAMES = ["batch", "new", "old + new", "old"]
DECODER = [
    InputSpec("input_ids", INT, ("batch", "new"), 100),
    InputSpec("attention_mask", INT, ("batch", "old + new")),
    InputSpec("past", FLOAT, ("batch", 4, "old", 8)),
    InputSpec("use_cache_branch", BOOL, (1,)),
]


def sizes(**given: int) -> list[int]:
    fixed = {k.replace("_", " + "): v for k, v in given.items()}
    return list(sizes_of(NAMES, fixed, (3, 17, 5)).values())


def test_sums_agree_with_their_parts() -> None:
    assert sizes() == [3, 17, 22, 5]
    assert sizes(old=0) == [3, 17, 17, 0]
    assert sizes(old_new=16) == [3, 16, 16, 0]  # a prompt
    assert sizes(old_new=16, new=1) == [3, 1, 16, 15]
    assert sizes_of(["a + b"], {}, (3,)) == {"a + b": 3}  # a name like any other
    assert sizes_of(["a + b"], {"a": 1, "b": 2}, (3,)) == {"a + b": 3}


@pytest.mark.parametrize("given", [{"old_new": 4, "old": 5}, {"old_new": 4, "old": 1, "new": 2}])
def test_sums_that_are_none_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="'old \\+ new' is not the sum of its parts"):
        sizes(**given)


def test_a_cache_may_be_empty_and_its_switch_is_on_when_it_is_not() -> None:
    found = list(cases(DECODER))
    assert {c.dims["old"] for c in found} >= {0, 1}
    assert len(found) == 4 * len(PATTERNS)
    for case in found:
        batch, new, old = (case.dims[n] for n in ("batch", "new", "old"))
        assert case.feeds["attention_mask"].shape == (batch, old + new)
        assert case.feeds["past"].shape == (batch, 4, old, 8)
        assert case.feeds["use_cache_branch"].all() or not old
    assert any(not c.feeds["use_cache_branch"].all() for c in found)


def test_shapes_that_a_user_gives() -> None:
    given = parse_shapes(["attention_mask=2x9", "new=4"], DECODER)
    assert [c.dims for c in cases(DECODER, given)] == [
        {"batch": 2, "new": 4, "old + new": 9, "old": 5}
    ] * len(PATTERNS)


MASKS = [
    InputSpec("x", FLOAT, ("batch", "seq")),
    InputSpec("a", INT, ("batch", "seq")),
    InputSpec("b", BOOL, ("batch", "seq")),
]


def test_masks_have_one_pattern_or_one_each() -> None:
    by_pattern = {c.pattern: c.feeds for c in cases(MASKS)}
    assert set(by_pattern) == {*PATTERNS, "mixed"}
    for pattern in PATTERNS:
        np.testing.assert_array_equal(by_pattern[pattern]["a"] != 0, by_pattern[pattern]["b"])
    found = [c.feeds for c in cases(MASKS) if c.pattern == "mixed"]
    assert any(np.any((f["a"] != 0) != f["b"]) for f in found)


def test_probes_try_every_size_alone_and_together() -> None:
    found = [c.dims for c in probes(MASKS)]
    for name in ("batch", "seq"):
        assert {0, 1, 11, 131} <= {dims[name] for dims in found}
    assert {"batch": 0, "seq": 0} in found and {"batch": 1, "seq": 1} in found
    fixed = [c.dims for c in probes(MASKS, given={"batch": 2})]
    assert {dims["batch"] for dims in fixed} == {2} and {dims["seq"] for dims in fixed} >= {0, 1}
    for case in probes(DECODER):
        assert case.dims["old + new"] == case.dims["old"] + case.dims["new"]


def test_probes_of_large_inputs_are_few_of_a_kind() -> None:
    """All that a model computes from a probe is held: 131 of these images took 22 GB."""
    image = InputSpec("x", np.dtype(np.float32), ("n", 901, 161))
    assert {c.dims["n"] for c in probes([image])} >= {0, 1, 2, 3}
    assert max(c.feeds["x"].size for c in probes([image])) <= 1 << 20
    large = InputSpec("x", np.dtype(np.float32), ("n", 1024, 1024))
    assert {c.dims["n"] for c in probes([large])} >= {0, 1, 3}  # as large as the others
    assert max(c.dims["n"] for c in probes([large])) == 3


def test_probes_hold_boundary_values() -> None:
    found = {c.pattern: c.feeds for c in probes(MASKS)}
    tiny, large = found["tiny x"]["x"], found["large x"]["x"]
    assert np.signbit(tiny[tiny == 0]).any() and np.finfo(np.float32).tiny in tiny
    assert {1e3, 1e4, -65504, np.float32(2**24 + 1)} <= {*large.reshape(-1).tolist()}
    assert {-1, 2} <= {*found["integers a"]["a"].reshape(-1).tolist()}
    limits = np.iinfo(np.int64)
    assert {limits.min, limits.max} <= {*found["limits a"]["a"].reshape(-1).tolist()}
    promised = [c.feeds["a"] for c in probes(MASKS, padding="a")]
    assert all(np.isin(a, (0, 1)).all() for a in promised)


def test_probes_hold_what_a_fact_compares_with() -> None:
    place = (dim_index(0, sym("batch")), dim_index(1, sym("seq")))
    tests = [Test("x", place, "neg", True), Test("x", place, "small", True)]
    tests.append(Test("a", (*place[:1], place[1], place[1]), "below", True))
    found = {c.pattern: {*c.feeds["x"].reshape(-1).tolist()} for c in probes(MASKS, tests)}
    assert found["mask -9999 x"] == {0, -9999} and found["mask -65504 x"] == {0, -65504}
    for at in (-1e4, -5750, -5000):
        ends = (np.nextafter(np.float32(at), np.float32(end)) for end in (-np.inf, np.inf))
        assert {at, *map(float, ends)} <= found["around a mask x"]
    assert {1000, -1000} <= found["around no mask x"]
    assert "lengths a" in found


def test_there_are_few_probes() -> None:
    many = [InputSpec(f"x{n}", FLOAT, (f"d{n}", f"e{n}")) for n in range(40)]
    assert len(list(probes(many))) == MOST


def test_integers_that_count_stay_small() -> None:
    def make(g: GraphBuilder) -> None:
        n = g.op("Add", g.input("n", np.int64, (1,)), g.ints(1))
        g.output(g.op("ConstantOfShape", n), "y", np.float32, ("n",))

    (spec,) = input_specs(ir.from_proto(built(make)))
    assert spec.counts
    assert max(c.feeds["n"].max() for c in probes([spec])) < 10
