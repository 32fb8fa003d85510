"""Features of the work, predicted times, and the fit of prices to measured points."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pitc.host.machine import cpu_level
from pitc.ir.tiles import FACTOR_UNIT, FACTORS, FEMTOSECONDS, GRID_ENDS, VariantCost, Work
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.options import LEVELS
from pitc.tiles.factors import factors_at, fit_factors
from pitc.tiles.file import Point, point_of
from pitc.tiles.fit import fit_costs, non_negative
from pitc.tiles.patterns import BLOCKS, PATTERNS, live_mask, operand
from pitc.tiles.selector import features_of
from tests.tile_prices import amounts, predicted_us, time_of, work

Run = Callable[..., tuple[int, str, str]]
HERE = LEVELS.get(cpu_level() or "", "v4")


def test_predictions_are_sums_of_features_and_prices() -> None:
    cost = VariantCost(tuple(range(3, 3 + len(FEATURES))))
    for variant in VARIANTS:
        found = amounts(variant, work())
        each = np.array(found) * cost.prices
        total = float(each.sum())
        if variant not in ("row", "tile8"):  # memory and arithmetic overlap
            streamed, computed = each[5], each[6:].sum()
            total += float(np.hypot(streamed, computed) - streamed - computed)
        assert time_of(cost.prices, variant, found) == pytest.approx(total)
        assert predicted_us(cost, variant, work()) == pytest.approx(total / FEMTOSECONDS)


def test_features_follow_the_kernels() -> None:
    def amount(variant: str, name: str, w: Work) -> float:
        return amounts(variant, w)[FEATURES.index(name)]

    for rows, padded in ((1, 2), (3, 6), (6, 6), (8, 8), (9, 12), (13, 14)):
        assert amount("dense", "steps", work(rows=rows)) == 5 * 300 * padded
    for rows, mean in ((4, 4), (8, 8), (9, 6), (13, 8)):
        assert amount("tile8", "listed", work(rows=rows)) == 2500 * mean
        assert amount("tile8", "steps", work(rows=rows)) == 5 * 2500 * mean
    for variant in VARIANTS:
        assert amount(variant, "written", work(rows=7)) == 5 * 7
        nothing = replace(work(), rows=0, counts=dict.fromkeys(work().counts, 0))
        assert max(amounts(variant, nothing)) == (1500 if variant == "dense" else 1)


def test_factors_multiply_predictions() -> None:
    prices = tuple(range(1, 1 + len(FEATURES)))
    plain = predicted_us(VariantCost(prices), "row", work())
    shares = features_of([work()])[1][0]
    for start, end in pairwise((0, *GRID_ENDS)):
        assert shares[start:end].sum() == pytest.approx(1) and (shares >= 0).all()
        factors = [FACTOR_UNIT] * FACTORS
        factors[start:end] = [3 * FACTOR_UNIT] * (end - start)
        told = predicted_us(VariantCost(prices, tuple(factors)), "row", work())
        assert told == pytest.approx(3 * plain)
    nothing = replace(work(), rows=0, counts=dict.fromkeys(work().counts, 0))
    shares = features_of([nothing])[1][0]
    assert ((shares >= 0) & (shares <= 1)).all()


def test_factors_are_found() -> None:
    """Those of times that follow from factors; what variants share at a point does not count."""
    rng = np.random.default_rng(0)
    costs = {v: VariantCost((10**8, *(10**5,) * (len(FEATURES) - 1))) for v in ("dense", "row")}
    points = [p.counted() for p in points_of(costs, 0)]
    shapes = features_of(points)[1]
    many = np.tile(shapes, (20, 1))
    known = [tuple(int(f) for f in rng.integers(850, 1150, FACTORS)) for _ in range(3)]
    for factors in known:
        first, second = np.split(shapes * np.array(factors) / FACTOR_UNIT, [GRID_ENDS[0]], axis=1)
        want = first.sum(axis=1) * second.sum(axis=1)
        np.testing.assert_allclose(factors_at(shapes, factors), want)
    left = np.log(np.stack([factors_at(many, f) for f in known], axis=1))
    slow = rng.standard_normal((len(many), 1))
    found = fit_factors(many, left + slow, np.ones_like(left))
    told = np.log(np.stack([factors_at(many, f) for f in found], axis=1))
    compared = (told - told[:, :1]) - (left - left[:, :1])
    assert np.abs(left - left[:, :1]).mean() > 0.05 > 0.01 > np.abs(compared).mean()
    assert fit_factors(shapes[:1], left[:1, :1], np.ones((1, 1))) == [(FACTOR_UNIT,) * FACTORS]


def test_non_negative_least_squares() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a = rng.random((30, 5)) * [1, 10, 1e6, 1e-3, 1]
        x = np.maximum(rng.standard_normal(5), 0) / [1, 10, 1e6, 1e-3, 1]
        scaled = non_negative(a.T @ a, a.T @ (a @ x)) * [1, 10, 1e6, 1e-3, 1]
        np.testing.assert_allclose(scaled, x * [1, 10, 1e6, 1e-3, 1], atol=1e-6)
        # at the minimum no coordinate can be moved either way
        b = rng.standard_normal(30)
        found = non_negative(a.T @ a, a.T @ b)
        gradient = a.T @ (a @ found - b) / np.sqrt((a * a).sum(axis=0))
        assert (found >= 0).all() and (gradient >= -1e-6).all()
        np.testing.assert_allclose(gradient[found > 0], 0, atol=1e-6)
    # columns that say the same share a price, and one that says nothing has none
    twice = np.ones((4, 3)) * [1, 1, 0]
    found = non_negative(twice.T @ twice, twice.T @ np.ones(4))
    assert found[:2].sum() == pytest.approx(1) and found[2] == 0


def points_of(costs: dict[str, VariantCost], noise: float) -> list[Point]:
    """Points whose times follow from prices, but for noise and some disturbed ones."""
    rng = np.random.default_rng(1)
    found = []
    for i in range(400):
        rows = int(rng.choice([1, 4, 8, 16, 64, 300]))
        k = int(rng.choice([64, 500, 2048]))
        mask = live_mask(
            rng, (rows, k), str(rng.choice(PATTERNS)), float(rng.choice([1, 0.3, 0.02]))
        )
        counts = {"elements": int(mask.sum()), "columns": int(mask.any(axis=0).sum())}
        groups = [mask[r : r + 8].any(axis=0).sum() for r in range(0, rows, 8)]
        counts["tile8"] = int(sum(groups))
        for name, width in (("block16", 16), ("block32", 32), ("block64", 64)):
            pieces = [mask[:, c : c + width].any(axis=1).sum() for c in range(0, k, width)]
            counts[name] = int(sum(pieces))
        columns = np.asarray(mask.any(axis=0))
        counts["runs"] = int((columns & ~np.r_[False, columns[:-1]]).sum())
        for width in (16, 32, 64):
            live = np.array([columns[c : c + width].any() for c in range(0, k, width)])
            counts[f"columns{width}"] = int(live.sum())
            counts[f"runs{width}"] = int((live & ~np.r_[False, live[:-1]]).sum())
        w = Work(rows, k, int(rng.integers(1, 60)), rows, -(-k // 512), bool(i % 3), counts)
        us = {
            v: predicted_us(c, v, w) * float(np.exp(noise * rng.standard_normal()))
            for v, c in costs.items()
        }
        if i % 20 == 0:  # a slow minute, or one disturbed run
            us = {v: 5 * t for v, t in us.items()}
        if i % 20 == 1:
            us["row"] *= 3
        found.append(point_of(64, "-", 0, w, us))
    return found


def test_the_fit_finds_known_prices() -> None:
    steps = {"dense": 520_000, "row": 1_400_000, "tile8": 700_000}
    prices = (9e8, 90e3, 300e3, 9e6, 5e6, 4e6, 0, 30e6)
    costs = {
        v: VariantCost((*(int(p) for p in prices[:6]), steps.get(v, 800_000), int(prices[7])))
        for v in VARIANTS
    }
    fits = fit_costs(points_of(costs, 0.02))
    for variant, fit in fits.items():
        assert fit.points == 400 and fit.median < 0.03 < fit.p95
        if variant in ("dense", "row"):  # of the others, steps and rows of B go together
            assert fit.cost.prices[6] == pytest.approx(costs[variant].prices[6], rel=0.05)
    # and predicts times that it has not seen
    for point in points_of(costs, 0.0)[2:20]:
        for variant, fit in fits.items():
            told = predicted_us(fit.cost, variant, point.counted())
            assert told == pytest.approx(point.us[variant], rel=0.06)


def test_what_variants_share_at_a_point_does_not_count() -> None:
    costs = {
        v: VariantCost((10**9, *(i + 1,) * (len(FEATURES) - 1)))
        for i, v in enumerate(("dense", "row"))
    }
    points = points_of(
        {v: VariantCost(tuple(10**5 * p for p in c.prices)) for v, c in costs.items()}, 0
    )
    rng = np.random.default_rng(0)
    slow = [
        p.model_copy(update={"us": {v: t * f for v, t in p.us.items()}})
        for p, f in zip(points, np.exp(0.3 * rng.standard_normal(len(points))), strict=True)
    ]
    fits = fit_costs(slow)
    for point in points[2:20]:
        dense, row = (predicted_us(fits[v].cost, v, point.counted()) for v in ("dense", "row"))
        assert dense / row == pytest.approx(point.us["dense"] / point.us["row"], rel=0.15)


def test_what_was_not_measured_has_no_prices() -> None:
    point = point_of(64, "1x1", 1.0, work(rows=100), {"dense": 50.0})
    fits = fit_costs([point])
    assert set(fits) == {"dense"}
    assert predicted_us(fits["dense"].cost, "dense", work(rows=100)) == pytest.approx(50, rel=0.01)


def test_patterns() -> None:
    rng = np.random.default_rng(0)
    for pattern in PATTERNS:
        for shape in ((1, 1), (33, 70), (64, 128)):
            for density in (0.0, 0.25, 1.0):
                mask = live_mask(rng, shape, pattern, density)
                assert mask.shape == shape
                assert mask.all() if density == 1 else not mask.any() or density > 0
        mask = live_mask(rng, (64, 256), pattern, 0.25)
        assert mask.mean() == pytest.approx(0.25, abs=0.02)
        if pattern in BLOCKS:
            height, width = (b or n for b, n in zip(BLOCKS[pattern], mask.shape, strict=True))
            blocks = mask.reshape(64 // height, height, 256 // width, width)
            assert (blocks.all(axis=(1, 3)) == blocks.any(axis=(1, 3))).all()
        x = operand(rng, (64, 256), pattern, 0.25)
        assert x.dtype == np.float32 and (x >= 0).all() and (x[x != 0] >= 1).all()
