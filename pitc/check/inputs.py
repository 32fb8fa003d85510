"""Inputs of a compiled model: what it takes, and which sizes the given ones fix."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pitc.artifact.manifest import FALLBACK
from pitc.check.feeds import Case, InputSpec, input_specs, parse_shapes
from pitc.compiled import CompiledModel

#: By name of an input its shape, or of a named dimension its size.
Shapes = Mapping[str, int | Iterable[int]]


def specs_of(compiled: CompiledModel, given: Mapping[str, Any]) -> list[InputSpec]:
    """The inputs of a compiled model; those that are given need no description."""
    import onnx_ir as ir

    return input_specs(ir.load(compiled.path / FALLBACK), given)


def given_dims(specs: Sequence[InputSpec], feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of named dimensions, as far as the given inputs fix them."""
    dims: dict[str, int] = {}
    for spec in specs:
        if spec.name in feeds and feeds[spec.name].ndim == len(spec.shape):
            pairs = zip(spec.shape, feeds[spec.name].shape, strict=True)
            dims |= {dim: size for dim, size in pairs if isinstance(dim, str)}
    return dims


def filled(
    specs: Sequence[InputSpec],
    given: Mapping[str, np.ndarray],
    shapes: Sequence[str],
    make: Callable[[list[InputSpec], dict[str, int]], Iterable[Case]],
) -> Iterator[Case]:
    """Given inputs, with others for those that are not.

    Args:
        specs: The inputs.
        given: Those that are given.
        shapes: Sizes, as `--shape` takes them; they go before those that the given inputs fix.
        make: Makes the others, of their descriptions and the known sizes of named dimensions.

    Raises:
        UsageError: A shape fits no input.
    """
    dims = given_dims(specs, given)
    missing = [s for s in specs if s.name not in given]
    for case in make(missing, dims | parse_shapes(shapes, specs)):
        yield Case(case.pattern, case.dims, case.feeds | dict(given))


def shape_texts(shapes: Shapes | None) -> list[str]:
    """Shapes as `--shape` takes them: `{"x": (2, 16), "batch": 2}` -> `["x=2x16", "batch=2"]`."""
    return [
        f"{name}={size if isinstance(size, int) else 'x'.join(map(str, size))}"
        for name, size in (shapes or {}).items()
    ]
