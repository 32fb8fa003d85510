"""Random inputs for a model, with padding as users have it."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.errors import UsageError
from pitc.ir.mask import PaddingMask, of_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

#: Where the zeros of a mask lie. `empty` has one sequence without any live token.
PATTERNS = ("full", "right", "left", "holes", "empty")
#: Sizes for named dimensions in order of appearance; odd, so that no two are confused.
SIZES = ((3, 17, 5, 7), (1, 1, 1, 1), (2, 33, 3, 9))
#: A random input has at most so many elements.
MAX_ELEMENTS = 1 << 30

#: Operators that pass integer values on unchanged.
_MOVES = {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity"} | {
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
#: Operands that say how large a tensor is, or how often something is done, by operator.
_COUNTS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Loop": (0,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Tile": (1,),
    "Upsample": (1,),
}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model.

    Args:
        name: Its name.
        dtype: Its numpy type.
        shape: Sizes, or names of sizes that are known only when the model runs.
        bound: Integer values must be below this (rows of the table that they look up); None when
            nothing is known.
        counts: Its values may decide how large tensors are: large ones need much memory.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    bound: int | None = None
    counts: bool = False

    @property
    def mask_like(self) -> bool:
        """True for integers and booleans of rank 1 or more that look nothing up, but no switch."""
        numbers = self.dtype.kind in "biu" and self.bound is None
        return bool(self.shape) and numbers and not self.switch

    @property
    def switch(self) -> bool:
        """True for a single boolean: it chooses a branch."""
        return self.dtype.kind == "b" and self.shape in ((), (1,))


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs."""

    pattern: str
    dims: dict[str, int]
    feeds: dict[str, np.ndarray] = field(repr=False)

    @property
    def title(self) -> str:
        """Pattern and sizes, e.g. `right batch=3 sequence=17`."""
        return " ".join([self.pattern, *(f"{name}={size}" for name, size in self.dims.items())])


def input_specs(model: "ir.Model", given: Collection[str] = ()) -> list[InputSpec]:
    """Describe the inputs of a model that a caller must give.

    Args:
        model: The model.
        given: Inputs that are there already; of these, what cannot be described is left out.

    Raises:
        UsageError: An input has no known rank or type, or is not a tensor of numbers.
    """
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        fault = _not_random(value)
        if fault and value.name in given:
            continue
        if fault or value.shape is None or value.dtype is None:
            raise UsageError(
                f"input {value.name!r} {fault}, so random values cannot be made for it",
                hint="give it as a file, or use the Python API",
            )
        shape = tuple(_dim(value.name or "", i, d) for i, d in enumerate(value.shape))
        dtype = value.dtype.numpy()
        bound = _bound(value) if dtype.kind in "iu" else None
        counts = dtype.kind in "iuf" and _counts(value)
        specs.append(InputSpec(str(value.name), dtype, shape, bound, counts))
    return specs


def _not_random(value: "ir.Value") -> str:
    """Why random values of an input cannot be made; empty when they can."""
    import onnx_ir as ir

    kind = value.type
    while isinstance(kind, ir.OptionalType):
        kind = kind.elem_type
    if not isinstance(kind, ir.TensorType):
        return "is no tensor"
    if value.dtype is None or value.dtype.is_string():
        return "is no tensor of numbers"
    return "has no rank" if value.shape is None else ""


def _dim(name: str, axis: int, dim: Any) -> int | str:
    """The size or its name; negative numbers, which old exporters write, mean an unnamed one."""
    size = dim if isinstance(dim, int) else dim.value
    if size is None or (isinstance(size, int) and size < 0):
        return f"{name}.{axis}"
    return size


def _readers(
    value: "ir.Value", passes_on: Callable[["ir.Node", int], bool]
) -> Iterator[tuple["ir.Node", int]]:
    """Who reads a value, and the results of those that pass it on; at which place."""
    seen, todo = {value}, [value]
    while todo:
        for node, place in todo.pop().uses():
            yield node, place
            if passes_on(node, place):
                fresh = [v for v in node.outputs if v not in seen]
                seen.update(fresh)
                todo.extend(fresh)


def _bound(value: "ir.Value") -> int | None:
    """Rows of the smallest constant table that a value looks up, directly or after moves."""

    def moves(node: "ir.Node", place: int) -> bool:
        return node.op_type in _MOVES and (place == 0 or node.op_type == "Concat")

    bounds = []
    for node, place in _readers(value, moves):
        table = node.inputs[0]
        if node.op_type == "Gather" and place == 1 and table is not None and table.shape:
            rows = table.shape[node.attributes.get_int("axis", 0)]
            bounds += [rows] if isinstance(rows, int) else []
    return min(bounds, default=None)


def _counts(value: "ir.Value") -> bool:
    """Whether anything computed from a value says how large a tensor is."""
    readers = _readers(value, lambda node, _: node.op_type not in ("Shape", "Size"))
    return any(place in _COUNTS.get(node.op_type, ()) for node, place in readers)


def parse_shapes(texts: Sequence[str], specs: Sequence[InputSpec]) -> dict[str, int]:
    """Read `input_ids=2x16` (the shape of an input) or `batch=2` (a named dimension).

    Returns:
        Sizes by dimension name.

    Raises:
        UsageError: A text names no size of the model, or its sizes do not fit.
    """
    by_name = {spec.name: spec for spec in specs}
    names = {d for spec in specs for d in spec.shape if isinstance(d, str)}
    dims: dict[str, int] = {}
    for text in texts:
        name, _, sizes_text = text.partition("=")
        parts = sizes_text.split("x") if sizes_text else []
        if not all(p.isdecimal() for p in parts) or "=" not in text:
            raise UsageError(f"shape {text!r} is not NAME=2x16")
        sizes = [int(p) for p in parts]
        if name in by_name:
            shape: Sequence[int | str] = by_name[name].shape
        elif name in names:
            shape = (name,)
        else:
            known = ", ".join([*by_name, *sorted(names)])
            raise UsageError(f"shape {text!r} names no size of the model", hint=f"known: {known}")
        if len(sizes) != len(shape):
            raise UsageError(f"shape {text!r} has rank {len(sizes)}, {name!r} has {len(shape)}")
        for dim, size in zip(shape, sizes, strict=True):
            if (dims.setdefault(dim, size) if isinstance(dim, str) else dim) != size:
                raise UsageError(f"shape {text!r}: size {size} where {dim!r} is already another")
    return dims


def named_dims(specs: Sequence[InputSpec]) -> list[str]:
    """Names of dimensions in order of appearance."""
    return list(dict.fromkeys(d for spec in specs for d in spec.shape if isinstance(d, str)))


def parts_of(name: str) -> list[str]:
    """The sizes whose sum a size is named as: `past + sequence`; none for a plain name.

    Exporters name the mask of a decoder with a cache so: it covers what is cached and what is new.
    """
    parts = [part.strip() for part in name.split("+")]
    return parts if len(parts) > 1 else []


def names_of_past(specs: Sequence[InputSpec]) -> set[str]:
    """Parts of sums that only floats have: lengths of caches, which start with 0."""
    names = named_dims(specs)
    parts = {part for name in names for part in parts_of(name)}
    counted = {d for spec in specs if spec.dtype.kind in "biu" for d in spec.shape}
    return parts.intersection(names) - counted


def sizes_of(
    names: Sequence[str], given: Mapping[str, int], sizes: Sequence[int]
) -> dict[str, int]:
    """A number for every named dimension.

    Sums and their parts agree: `["batch", "new", "old", "old + new"]` with the sizes 3, 17, 5 are
    3, 17, 5, 22. Of a sum that is given, the first part which is not takes what is left.

    Args:
        names: The names in order of appearance.
        given: Sizes that are fixed.
        sizes: Sizes for the others in that order; the last one serves all that follow.

    Raises:
        UsageError: A given sum is not that of its given parts.
    """
    known = {*names, *given}
    sums = {n: parts for n in names if (parts := parts_of(n)) and known.issuperset(parts)}
    dims = dict(given)
    for name, parts in sums.items():
        if name in dims:
            left = dims[name] - sum(dims.get(part, 0) for part in parts)
            free = [n for n in names if n in parts and n not in dims]
            if left < 0 or (left and not free):
                raise UsageError(f"size {dims[name]} of {name!r} is not the sum of its parts")
            for part in free:
                dims[part], left = left, 0
    plain = [n for n in names if n not in sums]
    for i, name in enumerate(plain):
        dims.setdefault(name, sizes[min(i, len(sizes) - 1)])
    for name, parts in sums.items():
        dims.setdefault(name, sum(dims[part] for part in parts))
    return {n: dims[n] for n in names}


def cases(
    specs: Sequence[InputSpec],
    given: Mapping[str, int] | None = None,
    padding: str | Sequence[PaddingMask] | None = None,
    seed: int = 0,
) -> Iterator[Case]:
    """Random inputs: every padding pattern at several sizes, a cache's length of 0 among them.

    All mask-like inputs have the same pattern; where there are several, they also have one each.

    Args:
        specs: The inputs.
        given: Sizes of named dimensions; those that are not given vary.
        padding: The padding masks, or the input that is one, if any is known; else every mask-like
            input gets the pattern.
        seed: Seed of the random numbers.
    """
    names = named_dims(specs)
    known_masks = of_inputs(padding)
    sources = {mask.source for mask in known_masks}
    masked = [s for s in specs if (s.name in sources if sources else s.mask_like)]
    given = given or {}
    done: list[dict[str, int]] = []
    fixed = {*given, *(part for name in given for part in parts_of(name))}
    empty = {**given, **dict.fromkeys(names_of_past(specs) - fixed, 0)}
    for row, (sizes, known) in enumerate([*((x, given) for x in SIZES), (SIZES[0], empty)]):
        dims = sizes_of(names, known, sizes)
        if dims in done:
            continue
        done.append(dims)
        for i, pattern in enumerate(PATTERNS if masked else PATTERNS[:1]):
            rng = np.random.default_rng((seed, row, i))
            yield Case(pattern, dims, random_feeds(specs, dims, rng, pattern, known_masks))
        if sum(s.mask_like or s.name in sources for s in specs) > 1:
            rng = np.random.default_rng((seed, row, len(PATTERNS)))
            patterns = {s.name: str(rng.choice(PATTERNS)) for s in specs}
            yield Case("mixed", dims, random_feeds(specs, dims, rng, patterns, known_masks))


def random_feeds(
    specs: Sequence[InputSpec],
    dims: Mapping[str, int],
    rng: np.random.Generator,
    pattern: str | Mapping[str, str],
    padding: str | Sequence[PaddingMask] | None = None,
) -> dict[str, np.ndarray]:
    """One set of random inputs.

    Args:
        specs: The inputs.
        dims: Size of every named dimension.
        rng: Source of randomness.
        pattern: One of `PATTERNS`, for masks: those of one shape are the same. Or one for each
            input: every mask is drawn by itself, token types too.
        padding: The padding masks, or the input that is one; they get the pattern whatever their
            type.

    Returns:
        Arrays by input name. Floats are standard normal; integers are below the input's bound, or 0
        and 1. Switches are on where there is a cache to be read: a decoder's branch without one
        takes a mask of other sizes.

    Raises:
        UsageError: One would have more than `MAX_ELEMENTS` elements.
    """
    feeds: dict[str, np.ndarray] = {}
    masks: dict[tuple[int, ...], np.ndarray] = {}
    known = {mask.source: mask for mask in of_inputs(padding) if mask.source}
    cached = any(dims[name] for name in names_of_past(specs))
    for spec in specs:
        shape = tuple(d if isinstance(d, int) else dims[d] for d in spec.shape)
        if math.prod(shape) > MAX_ELEMENTS:
            raise UsageError(
                f"input {spec.name!r} of shape {list(shape)} is too large to be made",
                hint="choose sizes by --shape, or give it as a file",
            )
        if not isinstance(pattern, str) and (spec.name in known or spec.mask_like):
            real = _mask(shape, pattern[spec.name], rng)
        elif spec.name in known or (spec.mask_like and not spec.name.endswith("type_ids")):
            if shape not in masks:
                masks[shape] = _mask(shape, str(pattern), rng)
            real = masks[shape]
        else:
            real = None
        if real is not None and spec.name not in known:
            feeds[spec.name] = real.astype(spec.dtype)
        elif real is not None:
            drawn = rng.integers(0, spec.bound or 2, shape).astype(spec.dtype)
            feeds[spec.name] = known[spec.name].written(real != 0, drawn)
        elif spec.switch and cached and isinstance(pattern, str):
            feeds[spec.name] = np.ones(shape, bool)
        elif spec.dtype.kind in "biu":
            feeds[spec.name] = rng.integers(0, spec.bound or 2, shape).astype(spec.dtype)
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
    return feeds


def _mask(shape: tuple[int, ...], pattern: str, rng: np.random.Generator) -> np.ndarray:
    """A boolean mask; every sequence (last axis) keeps one live token but in `empty`."""
    length = shape[-1]
    position = np.arange(length)
    live = rng.integers(min(1, length), length + 1, (*shape[:-1], 1))
    mask: np.ndarray = position < live
    if pattern == "full":
        mask = np.ones(shape, bool)
    elif pattern == "left":
        mask = position >= length - live
    elif pattern == "holes":
        mask = (rng.random(shape) < 0.5) | (position == live - 1)
    elif pattern == "empty":
        mask.reshape(-1, max(length, 1))[:1] = False
    return mask


def draw_lengths(rng: np.random.Generator, batch: int, length: int, mean: int) -> list[int]:
    """Skewed lengths between 1 and `length` whose mean is `mean` and whose longest is `length`.

    Raises:
        ValueError: No such lengths exist.
    """
    total = mean * batch
    if not length + batch - 1 <= total <= length * batch:
        raise ValueError(f"{batch} lengths up to {length} cannot have the mean {mean}")
    lengths = np.clip(np.rint(rng.gamma(2.0, mean / 2.0, batch)), 1, length).astype(int)
    longest = int(rng.integers(batch))
    lengths[longest] = length
    while (off := total - int(lengths.sum())) != 0:
        step = 1 if off > 0 else -1
        free = (lengths < length) if step > 0 else (lengths > 1)
        free[longest] = False
        chosen = rng.permutation(np.flatnonzero(free))[: abs(off)]
        lengths[chosen] += step
    return [int(n) for n in lengths]
