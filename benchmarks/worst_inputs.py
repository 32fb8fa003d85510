"""Sizes and inputs at which a model is run: random ones, and those of a file beside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.worst_cases import SIZES
from pitc.check.feeds import InputSpec, named_dims, random_feeds, sizes_of
from pitc.check.inputs import given_dims
from pitc.ir.mask import PaddingMask

Feeds = Mapping[str, npt.NDArray[Any]]
Run = Callable[[Feeds], Mapping[str, npt.NDArray[Any]]]

PATTERNS = ("full", "right")
LEAST_LENGTH, MOST_LENGTH = 4, 8192
MOST_ELEMENTS = 1 << 24  # of an input that is longer than was asked for


def given_inputs(model: Path) -> dict[str, npt.NDArray[Any]]:
    """Inputs in the file `<model>.npz` beside a model: what cannot be drawn, such as a rate."""
    path = model.with_suffix(".npz")
    return dict(np.load(path)) if path.is_file() else {}


def masks_of(specs: Sequence[InputSpec]) -> list[str]:
    """Inputs that may be named as padding, the one of the result first."""
    names = [s.name for s in specs if s.mask_like and len(s.shape) == 2 and "mask" in s.name]
    return sorted(names, key=lambda name: not name.startswith("decoder"))


def settings(specs: Sequence[InputSpec], given: Feeds) -> Iterator[tuple[str, str]]:
    """Sizes and patterns; a model without free sizes has one, and one without masks is full."""
    masked = any(s.mask_like for s in specs if s.name not in given)
    for size in SIZES if {*named_dims(specs)} - given_dims(specs, given).keys() else ("small",):
        for pattern in PATTERNS if masked else PATTERNS[:1]:
            yield size, pattern


def sized(
    specs: Sequence[InputSpec],
    size: str,
    source: Run,
    pattern: str,
    masks: Sequence[PaddingMask] = (),
    given: Feeds | None = None,
) -> tuple[dict[str, int], Feeds] | None:
    """Inputs of a size, or of the largest below it that the model takes (a table of positions ends
    somewhere), or else of the smallest above it (a frame of sound has so many samples); of one
    sequence where it takes no batch.

    Args:
        specs: The inputs.
        size: A key of `SIZES`.
        source: Runs the model; what it raises says that it does not take the inputs.
        pattern: Of `pitc.check.feeds`, for masks.
        masks: The padding masks.
        given: Inputs that are not drawn.

    Returns:
        The size of every named dimension and the inputs; None where it takes none.
    """
    given = given or {}
    names, fixed = named_dims(specs), given_dims(specs, given)
    missing = [spec for spec in specs if spec.name not in given]
    leading = [spec.shape[0] for spec in specs if names and names[0] in spec.shape]
    batch, asked = SIZES[size]
    batches = dict.fromkeys((batch, 1) if leading[:1] == names[:1] else (0,))
    for batch, length in product(batches, _lengths(asked)):
        dims = sizes_of(names, fixed, (batch, length) if batch else (length,))
        if length > asked and _largest(specs, dims) > MOST_ELEMENTS:
            continue
        drawn = random_feeds(missing, dims, np.random.default_rng(7), pattern, masks)
        feeds = drawn | dict(given)
        try:
            source(feeds)
        except Exception:  # whatever it is, ONNX Runtime does not run these
            continue
        return dims, feeds
    return None


def _lengths(asked: int) -> Iterator[int]:
    length = asked
    while length >= LEAST_LENGTH:
        yield length
        length //= 2
    while asked < MOST_LENGTH:
        asked *= 2
        yield asked


def _largest(specs: Sequence[InputSpec], dims: Mapping[str, int]) -> int:
    """Elements of the largest input."""
    shapes = ([d if isinstance(d, int) else dims[d] for d in spec.shape] for spec in specs)
    return max((int(np.prod(shape)) for shape in shapes), default=0)
