"""Operations of gradients in the provider against numpy, with reference kernels in C++."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests import plan_reference
from tests.runtime_support import (
    COORDS,
    FLOAT,
    INT32,
    Array,
    Plan,
    Run,
    Value,
    kernel_plan,
    loader,
    make_model,
    masks,
    pit_node,
    points,
    use_built_provider,
)

pytest.importorskip("onnxruntime")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)
load = pytest.fixture(loader)

D, DV, HEADS, LENGTH = 4, 6, 2, 40
SIZES = {"d": D, "dv": DV, "heads": HEADS}
LISTS = ["keys", "seen_by", "tiles", "order"]
KINDS = [(0, 0, None), (1, 0, None), (0, 1, None), (1, 0, -1.0), (1, 1, -1.0)]


def tiles_of(seen: list[Array]) -> dict[str, Array]:
    """Lists of the keys that each 32 queries of a sequence see; every other tile sees all keys."""
    keys, bits, tiles, rows = list[int](), list[int](), list[tuple[int, int, int]](), 0
    for sequence in seen:
        for begin in range(0, len(sequence), 32):
            part = sequence[begin : begin + 32]
            if len(tiles) % 2:
                tiles.append((0, part.shape[1], 0))
                part[:] = True
                continue
            listed = np.flatnonzero(part.any(0))
            tiles.append((len(keys), len(listed), 1))
            keys += listed.tolist()
            words = (part[:, listed].astype(np.int64) << np.arange(len(part))[:, None]).sum(0)
            bits += words.astype(np.uint32).view(np.int32).tolist()
        rows += len(sequence)
    found = {"keys": keys, "seen_by": bits, "order": range(rows)}
    lists = {name: np.array(list(x), np.int32) for name, x in found.items()}
    return lists | {"tiles": np.array(tiles, np.int32).reshape(-1, 3)}


@pytest.mark.parametrize(("bias", "pairs", "floor"), KINDS)
def test_gradients_of_attention(
    load: Callable[..., Run], bias: int, pairs: int, floor: float | None
) -> None:
    suffix = "_bias" * bias + ("" if floor is None else "_floor")
    kernel = f"attention_grad_d{D}_v{DV}"
    fields: dict[str, float | str] = {"no_pairs": "nan"}
    fields |= {} if floor is None else {"floor": floor}
    plan = kernel_plan(
        "attention_grad", kernel + suffix, **SIZES, **fields, scale=0.5, bias=bias, pairs=pairs
    )
    if pairs:
        listed = f"{kernel}{'_bias' * bias}_pairs{'' if floor is None else '_floor'}"
        named = dict(plan.fields) | {"kernels": f"attention_grad:{kernel}{suffix},pairs:{listed}"}
        plan = Plan(plan.op, tuple(named.items()))
    names = ["q", "k", "v", "o", "o", *(["bias", "coords", "coords"] * bias)]
    names += [*(LISTS * pairs), "g"]
    inputs: list[Value] = [(name, FLOAT, [None] * 3) for name in "qkvg"]
    inputs += [("o", INT32, [None])]
    inputs += [("bias", FLOAT, [None] * 4), COORDS] * bias
    inputs += [(name, INT32, [None, 3] if name == "tiles" else [None]) for name in LISTS] * pairs
    outputs: list[Value] = [(f"d{name}", FLOAT, [None] * 3) for name in "qkv"]
    node = pit_node("a", plan, names, [name for name, *_ in outputs])
    run = load(make_model([node], inputs, outputs))
    rng = np.random.default_rng(6)
    for live in masks(rng, (3, LENGTH)):
        _, coords, o = points(live)
        given = {name: rng.standard_normal((o[-1], HEADS, D), np.float32) for name in "qk"}
        given |= {name: rng.standard_normal((o[-1], HEADS, DV), np.float32) for name in "vg"}
        feeds = given | {"o": o}
        if bias:
            drawn = rng.standard_normal((3, 1, LENGTH, LENGTH), np.float32)
            feeds |= {"coords": coords, "bias": np.where(drawn > 1, drawn - np.float32(9), drawn)}
        if pairs:
            seen = [rng.random((n, n)) < 0.4 for n in np.diff(o)]
            for each in seen:
                np.fill_diagonal(each, True)
            feeds |= tiles_of(seen)
        texts = {key: str(x) for key, x in dict(plan.fields).items()}
        texts |= {"scale": (0.5).hex()} | ({} if floor is None else {"floor": floor.hex()})
        order = [*names[:-1], "g"]
        expected = plan_reference.attention_grad(texts, *(feeds[name] for name in order))
        for got, want in zip(run(**feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("no_pairs", ["nan", "zero"])
def test_a_query_that_sees_no_key(load: Callable[..., Run], no_pairs: str) -> None:
    """Its softmax is NaN, and with it all that it adds to; or 0, and it adds nothing."""
    kernel = f"attention_grad_d{D}_v{DV}{'_zero' * (no_pairs == 'zero')}"
    fields: dict[str, Any] = {"scale": 0.5, "bias": 0, "pairs": 1, "no_pairs": no_pairs}
    plan = kernel_plan("attention_grad", kernel, **SIZES, **fields)
    listed = f"attention_grad_d{D}_v{DV}_pairs{'_zero' * (no_pairs == 'zero')}"
    named = dict(plan.fields) | {"kernels": f"attention_grad:{kernel},pairs:{listed}"}
    plan = Plan(plan.op, tuple(named.items()))
    names = ["q", "k", "v", "o", "o", *LISTS, "g"]
    inputs: list[Value] = [(name, FLOAT, [None] * 3) for name in "qkvg"]
    inputs += [("o", INT32, [None])]
    inputs += [(name, INT32, [None, 3] if name == "tiles" else [None]) for name in LISTS]
    outputs: list[Value] = [(f"d{name}", FLOAT, [None] * 3) for name in "qkv"]
    run = load(make_model([pit_node("a", plan, names, ["dq", "dk", "dv"])], inputs, outputs))
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((5, HEADS, D), np.float32) for name in "qk"}
    given |= {name: rng.standard_normal((5, HEADS, DV), np.float32) for name in "vg"}
    for seen in (np.eye(3, dtype=bool), np.zeros((3, 3), bool)):
        seen[1] = False
        lists = tiles_of([seen, np.eye(2, dtype=bool)])
        lists["tiles"][1] = (0, 2, 0)
        dq, dk, dv = run(**given, o=np.array([0, 3, 5], np.int32), **lists)
        if no_pairs == "zero":
            assert not dq[:3][~seen.any(1)].any()
            assert all(np.isfinite(x).all() for x in (dq, dk, dv))
            continue
        assert np.array_equal(np.isnan(dq[:, 0, 0]), np.append(~seen.any(1), [False, False]))
        for x in (dk, dv):
            assert np.isnan(x[:3]).all() and np.isfinite(x[3:]).all()


@pytest.mark.parametrize("turned", [0, 1])
def test_products_of_few_terms(load: Callable[..., Run], turned: int) -> None:
    """Exact where few elements are not 0, and of all of them where B is not finite."""
    plan = Plan("sparse_product", (("turned", turned),))
    inputs = [("a", FLOAT, [None] * 3), ("b", FLOAT, [None] * 2)]
    model = make_model([pit_node("p", plan, ["a", "b"], ["y"])], inputs, [("y", FLOAT, [None] * 3)])
    run, rng = load(model), np.random.default_rng(turned)
    for *rows, k, n, live in (
        *((1, 1, 1, 1, 1), (2, 3, 1, 5, 0.5), (1, 5, 65, 3, 0.1), (3, 40, 130, 70, 0.02)),
        *((0, 3, 4, 5, 1), (2, 2, 0, 5, 1), (2, 2, 4, 0, 1), (1, 700, 300, 257, 0.01)),
    ):
        a = np.where(rng.random((*rows, k)) < live, rng.integers(-9, 9, (*rows, k)), -0.0)
        b = rng.integers(-9, 9, (k, n)).astype(np.float32)
        for odd in (None, np.inf, np.nan):
            if odd is not None and b.size:
                b.flat[rng.integers(b.size)] = odd
            if odd is not None and a.size:
                a.flat[rng.integers(a.size)] = odd
            given = a.astype(np.float32)
            (y,) = run(a=np.moveaxis(given, -1, 0).copy() if turned else given, b=b)
            with np.errstate(invalid="ignore"):
                assert np.array_equal(y, given @ b, equal_nan=True), (rows, k, n, odd)
            assert not np.signbit(y[y == 0]).any() or not k
    with pytest.raises(Exception, match="expected b of 4 rows"):
        run(a=np.zeros((4, 4, 4), np.float32), b=np.zeros((5, 2), np.float32))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("sized", [False, True])
def test_rows_are_added(load: Callable[..., Run], sized: bool, scaled: bool) -> None:
    kinds = ("sized", 1) if sized else ("n", 7), ("sized", int(sized))
    plan = Plan("add_rows", tuple(dict((("scaled", int(scaled)), ("started", 0), *kinds)).items()))
    inputs: list[Value] = [("i", TensorProto.INT64, [None, 1]), ("x", FLOAT, [None, None])]
    inputs += [("n", TensorProto.INT64, [1])] if sized else []
    inputs += [("f", FLOAT, [None, 1])] if scaled else []
    names = [name for name, *_ in inputs]
    run = load(make_model([pit_node("a", plan, names, ["y"])], inputs, [("y", FLOAT, [None] * 2)]))
    rng, seven = np.random.default_rng(0), {"n": np.array([7])} if sized else {}
    for count, width in ((0, 3), (1, 1), (300, 1), (5, 0), (40, 65), (2000, 130)):
        i, x = rng.integers(-7, 7, (count, 1)), rng.integers(-9, 9, (count, width))
        f = rng.integers(-3, 3, (count, 1))
        want, given = np.zeros((7, width)), {"f": f.astype(np.float32)} if scaled else {}
        np.add.at(want, i[:, 0], x * f if scaled else x)
        assert np.array_equal(run(i=i, x=x.astype(np.float32), **seven, **given)[0], want)
    two = {"f": np.ones((2, 1), np.float32)} if scaled else {}
    with pytest.raises(Exception, match="expected indices from -7 to 6, got 7 at 1"):
        run(i=np.array([[0], [7]]), x=np.zeros((2, 3), np.float32), **seven, **two)
    if scaled:
        with pytest.raises(Exception, match="expected factors as one number for each of 3 rows"):
            run(i=np.zeros((3, 1), np.int64), x=np.zeros((3, 2), np.float32), **seven, **two)
    if sized:
        none = {"i": np.zeros((0, 1), np.int64), "x": np.zeros((0, 3), np.float32)}
        none |= {"f": np.zeros((0, 1), np.float32)} if scaled else {}
        assert run(**none, n=np.array([0]))[0].shape == (0, 3)
        for wrong in (-1, 1 << 60):
            with pytest.raises(Exception, match=f"expected a size from 0 to .*, got {wrong}"):
                run(**none, n=np.array([wrong]))
