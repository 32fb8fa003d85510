"""Inputs that try what random ones do not: sizes of 0 and 1, masks that disagree, boundary values.

Each probe changes one thing of an ordinary input, so that a feed which the model refuses, or which
breaks an assumption, costs one probe. There are at most `MOST`, whatever the model, and none of an
input that is much larger than others: all that is computed from it is held.

* every size that may vary as 0, 1, an odd number and one that no 8-bit integer counts; some at once
* every mask-like input with a pattern of its own, all with the same one
* every input with boundary values of its type: -0.0, least normal, 2^24 + 1, limits of integers
* every input that a fact tests, with values at and around what it is compared with
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from pitc.check.feeds import PATTERNS, Case, InputSpec, named_dims, parts_of, random_feeds, sizes_of
from pitc.ir.constant import HIDDEN, KEPT, MASKED, SCORE_LIMIT, SMALL
from pitc.ir.mask import PaddingMask, of_inputs
from pitc.ir.region import Test

MOST = 64
BASE = (3, 7, 5, 9)  # small: a probe runs a model many times
ALONE = (0, 1, 11)  # every size, the others as in BASE
LONG = 131  # no signed 8-bit integer; the other sizes are 1
TOGETHER = (0, 1, 2, 3, 5)
MOST_ELEMENTS = 1 << 20  # of an input, unless it has more in BASE: 131 images are gigabytes
RANDOM_SIZES = 4
MIXED = 4
SHARE = 0.3  # of the places that hold a boundary value
INTEGERS = (0, 1, 2, -1)
FAR = (-1e9, -65504.0, -1e4 - 1, MASKED, -9999.0)  # what exporters write for minus infinity

Dims = Mapping[str, int]


def probes(
    specs: Sequence[InputSpec],
    tests: Iterable[Test] = (),
    given: Dims | None = None,
    padding: str | Sequence[PaddingMask] | None = None,
    seed: int = 0,
) -> Iterator[Case]:
    """At most `MOST` inputs.

    Args:
        specs: The inputs.
        tests: Those of the facts; what they look at need not be inputs.
        given: Sizes that are fixed.
        padding: The padding masks, or the input that is one, if any.
        seed: Of the random numbers.
    """
    names = named_dims(specs)
    rng = np.random.default_rng(seed)
    base = sizes_of(names, given or {}, BASE)
    most = max(MOST_ELEMENTS, _elements(specs, base))
    plans: list[tuple[str, Dims, str, Sequence[float]]] = [
        ("sizes", dims, "", ())
        for dims in _sizes(names, given or {}, rng)
        if _elements(specs, dims) <= most
    ]
    plans += [("mixed", base, "", ()) for _ in range(MIXED)]
    flags = {mask.source for mask in of_inputs(padding) if mask.number is None}
    free = [s for s in specs if s.name not in flags]
    plans += [(kind, base, s.name, x) for s in free for kind, x in _boundaries(s)]
    plans += [(kind, base, s.name, x) for s in free for kind, x in _thresholds(s, tests)]
    if len(plans) > MOST:
        chosen = sorted(rng.choice(len(plans), MOST, replace=False))
        plans = [plans[k] for k in chosen]
    for k, (kind, dims, name, values) in enumerate(plans):
        rng = np.random.default_rng((seed, k))
        patterns = {s.name: str(rng.choice(PATTERNS)) for s in specs}
        feeds = random_feeds(specs, dims, rng, patterns, padding)
        if name:
            feeds[name] = _sprinkled(feeds[name], values, rng)
        yield Case(f"{kind} {name}".strip(), dict(dims), feeds)


def _elements(specs: Iterable[InputSpec], dims: Dims) -> int:
    """Of the largest input."""
    shapes = ([d if isinstance(d, int) else dims[d] for d in spec.shape] for spec in specs)
    return max(map(prod, shapes), default=0)


def _sizes(names: Sequence[str], given: Dims, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """One size at a time, and a few combinations."""
    known = {*names, *given}
    plain = [n for n in names if not (parts_of(n) and known.issuperset(parts_of(n)))]
    free = [n for n in plain if n not in given]
    tried = [{name: size} for name, size in product(free, ALONE)]
    tried += [dict.fromkeys(free, size) for size in ALONE[:2]]
    tried += [dict.fromkeys(free, 1) | {name: LONG} for name in free]
    for _ in range(RANDOM_SIZES):
        tried.append({name: int(rng.choice(TOGETHER)) for name in free})
    done: list[dict[str, int]] = []
    for sizes in tried if free else ():
        dims = sizes_of(names, {**given, **sizes}, BASE)
        if dims not in done:
            done.append(dims)
            yield dims


def _boundaries(spec: InputSpec) -> Iterator[tuple[str, Sequence[float]]]:
    """Boundary values of an input's type."""
    if spec.dtype.kind == "f":
        info = np.finfo(spec.dtype)
        tiny = float(info.tiny), float(info.smallest_subnormal)
        yield "tiny", (-0.0, 0.0, *tiny, -tiny[0], -tiny[1])
        if spec.counts:
            return
        large = (SCORE_LIMIT, SMALL, 2.0**24 + 1, -(2.0**24) - 1, 1e4, -65504.0)
        yield "large", [x for x in large if abs(x) <= float(info.max)]
    elif spec.dtype.kind in "iu":
        if spec.counts:
            yield "counts", (0, 1, 2, 5)
        limits = np.iinfo(spec.dtype)
        if spec.bound is None:
            yield "integers", [x for x in INTEGERS if x >= limits.min]
            if not spec.counts:
                yield "limits", (limits.min, limits.max)
        else:
            yield "lookups", (0, spec.bound - 1)


def _thresholds(spec: InputSpec, tests: Iterable[Test]) -> Iterator[tuple[str, Sequence[float]]]:
    """What the facts compare an input with: values at it, and around it."""
    kinds = sorted({t.pred for t in tests if t.src == spec.name})
    if spec.dtype.kind == "f":
        if "neg" in kinds:
            yield from ((f"mask {low:g}", (0.0, low)) for low in FAR)
            ends = (MASKED, HIDDEN, KEPT, HIDDEN - SCORE_LIMIT)
            yield "around a mask", [0.0, *_around(spec.dtype, ends)]
        if "small" in kinds:
            yield "around no mask", _around(spec.dtype, (SMALL, -SMALL))
    elif "below" in kinds and spec.dtype.kind in "iu":
        least = -1 if spec.dtype.kind == "i" else 0
        yield "lengths", (least, 0, 1, *BASE, max(BASE) + 1)


def _around(dtype: np.dtype[np.generic], numbers: Iterable[float]) -> list[float]:
    """The numbers of a type, and those next to them."""
    kind, found = dtype.type, []
    for x in numbers:
        at = kind(x)
        found += [float(np.nextafter(at, kind(end))) for end in (-np.inf, np.inf)]
        found.append(float(at))
    return found


def _sprinkled(x: np.ndarray, values: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """An array with each of the values at random places; a mask holds nothing else."""
    only = len(values) == 2 and 0.0 in values
    count = x.size if only else min(x.size, max(len(values), int(SHARE * x.size)))
    found = np.array(values, None if x.dtype.kind == "f" else x.dtype).astype(x.dtype)
    out = x.copy()
    out.reshape(-1)[rng.permutation(x.size)[:count]] = np.resize(found, count)
    return out
