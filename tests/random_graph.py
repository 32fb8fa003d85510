"""Random graphs drawn from the rule tables: every operator that has a proven sample may occur.

A step takes a sample node (`rule_samples.py`), binds its extents to those of values that the graph
has already, and makes the operands that are missing. Other steps are the structures of
`fact_random.py` (masks, attention, pooling), so that packed regions occur. Every node is run as
soon as it stands: a step that ONNX Runtime refuses, or that leaves the numbers' ordinary range, is
taken back. The source of random numbers may be hypothesis, which shrinks a failing graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from pitc.passes.rules.elementwise import function_of
from tests.fact_feeds import Pattern
from tests.fact_random import MAKERS, WIDTH, RandomGraph, attend, scores, softmax
from tests.random_blocks import BLOCKS, attention
from tests.random_nodes import NodeFailed, is_control, run_control, run_node
from tests.random_values import (
    BATCH,
    DATA_SHAPED,
    DIVISORS,
    FREE_INTS,
    KEYS,
    LOW,
    LOW_READERS,
    SEQ,
    ZERO_SAFE,
    Array,
    Builder,
    Input,
    Levels,
    Value,
    bind,
    domain,
    finite,
    is_low,
    names_read,
    samples_by_operator,
)
from tests.rule_proof import Const, Sample, array_of

OPSETS = (21,) * 10 + (20, 20, 24, 26, 18, 13, 11, 9)
STRUCTURED_SINCE = 20  # the structures are written for these operator sets
MAX_NODES = 64
MAX_INPUTS = 9
# of batch, sequence and the keys of cross attention, where the operators take such: 0, 1, odd ones
OTHER_SIZES = (
    *((1, 1, 1), (2, 1, 3), (1, 9, 5), (3, 4, 1), (2, 2, 2), (3, 5, 9)),
    *((0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 0, 0), (0, 0, 1)),
)
LARGE, LARGE_INT = 30.0, 1000
SPECIAL = (0.0, 0.0, 0.0, 1.0, 1.0, -1.0, 0.5, np.nan)
LOW_SPECIAL = (-1e4, -np.inf)
EXTENTS = (1, 1, 1, 2, 3, 5, 7, 0)
IMAGE_STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Relu", {}),
    ("MaxPool", {"kernel_shape": [3], "pads": [1, 1]}),
    ("AveragePool", {"kernel_shape": [2], "pads": [0, 1], "count_include_pad": 1}),
    ("LpPool", {"kernel_shape": [3], "pads": [1, 1]}),
    ("Softmax", {"axis": 1}),
)
KINDS = {
    ("b", (BATCH, SEQ)): ("bool",),
    ("f", (BATCH, SEQ)): ("mask",),
    ("f", (BATCH, SEQ, WIDTH)): ("rows",),
    ("f", (BATCH, WIDTH)): ("pooled",),
    ("f", (BATCH, SEQ, SEQ)): ("scores", "weights"),
}


class RuleGraph(RandomGraph):
    """A random graph of 1..MAX_NODES nodes.

    Args:
        source: Random numbers: numpy's generator, or `Given`.
    """

    def __init__(self, source: Any) -> None:
        self.rng = source
        self.opset = OPSETS[self.rng.integers(len(OPSETS))]
        self.g: Builder = Builder("random", 20)
        self.g.opset = self.opset
        self.static = self.rng.integers(5) == 4
        self.specs: list[Input] = []
        self.pool: list[Value] = []
        self.arrays: dict[str, Array] = {}
        self.values = {kind: [] for kinds in KINDS.values() for kind in kinds}
        self._add_input("mask", np.dtype(np.int64), (BATCH, SEQ))
        self._add_input("x", np.dtype(np.float32), (BATCH, SEQ, WIDTH))
        self._grow()

    def _grow(self) -> None:
        g = self.g
        if self.opset >= STRUCTURED_SINCE:
            self._add_input("extra_mask", np.dtype(np.float32), (BATCH, SEQ))
        self._step(lambda: g.op("Cast", "mask", to=9))
        self._step(lambda: g.op("Cast", "mask", to=1))
        makers = [make for group in MAKERS.values() for make in group]
        masked = self.opset >= STRUCTURED_SINCE and self.rng.random() < 0.6
        for _ in range(3 * MAX_NODES):
            if not self.rng.integers(24) or len(g.nodes) >= MAX_NODES - (16 if masked else 1):
                break
            if self.opset >= STRUCTURED_SINCE and self.rng.random() < 0.3:
                self._step(lambda: BLOCKS[self.rng.integers(len(BLOCKS))](self))
            elif self.opset >= STRUCTURED_SINCE and self.rng.random() < 0.6:
                make = makers[self.rng.integers(len(makers))]
                self._step(lambda make=make: make(self))
            else:
                self._step(self._rule)
        wanted = None
        if masked:
            wanted = self._masked_images() if self.rng.random() < 0.15 else None
            wanted = wanted or self._masked_rows()
        self._choose_outputs(wanted)

    def _masked_rows(self) -> str:
        """Rows behind a contraction, or behind attention, times a mask."""
        known, mask = self.values, self.any("mask")
        self.values = {kind: list(names) for kind, names in known.items()}
        if self.rng.random() < 0.6:  # one and the same mask for keys and rows
            self.values["bool"], mask = known["bool"][:1], known["mask"][0]
        if self.rng.random() < 0.5:
            self._step(lambda: attention(self))
        elif self.rng.random() < 0.5:
            for kind, make in (("scores", scores), ("weights", softmax), ("rows", attend)):
                self._step(lambda make=make: make(self))
                self.values[kind] = self.values[kind][-1:]
        self._step(self.matmul)
        rows = self.values["rows"][-1]
        self._step(lambda: self.g.op("Mul", rows, self.wide(mask)))
        return self.values["rows"][-1]

    def _masked_images(self) -> str | None:
        """Lines of images behind convolutions and pooling, one row for each, times a mask."""
        start = len(self.g.nodes)
        self._step(self._images)
        pooled = self.values["pooled"]  # a large value is scaled down, and may not get in
        return pooled[-1] if len(self.g.nodes) > start and pooled else None

    def _images(self) -> None:
        g, rng = self.g, self.rng
        mask = self._add_input("mask_of_images", np.dtype(np.float32), (BATCH, 1))
        x = g.op("Transpose", self.any("rows"), perm=[0, 2, 1])
        for _ in range(1 + rng.integers(2)):
            filters = np.asarray(rng.normal(size=(WIDTH, WIDTH, 3)), np.float32) / WIDTH
            x = g.op("Conv", x, g.weight(f"w{len(g.nodes)}", filters), pads=[1, 1])
            for _ in range(rng.integers(3)):
                op, attributes = IMAGE_STEPS[rng.integers(len(IMAGE_STEPS))]
                x = g.op(op, x, **attributes)
        g.op("Mul", g.op("Flatten", g.op("GlobalAveragePool", x)), mask)

    def weight(self) -> str:
        """A new matrix, now and then masked by an input, transposed or not."""
        g, weight = self.g, super().weight()
        if self.rng.random() > 0.2 or len(self.specs) >= MAX_INPUTS:
            return weight
        keep = self._add_input(f"mask_of_{weight}", np.dtype(np.bool_), (WIDTH, WIDTH))
        if self.rng.random() < 0.3:
            masked = g.op("Where", keep, weight, g.const(0.0))
        else:
            masked = g.op("Mul", weight, g.op("Cast", keep, to=1))
        return g.op("Transpose", masked, perm=[1, 0]) if self.rng.random() < 0.3 else masked

    def _step(self, make: Callable[[], Any]) -> None:
        """Add what a maker adds, or nothing where a node of it does not run."""
        start, inputs = len(self.g.nodes), len(self.specs)
        try:
            make()
            if len(self.g.nodes) > MAX_NODES:
                raise NodeFailed("too many nodes")
            found = [v for node in self.g.nodes[start:] for v in self._run(node)]
        except NodeFailed:
            self._take_back(start, inputs)
            return
        for value in found:
            self._enter(value)

    def _take_back(self, start: int, inputs: int) -> None:
        """Remove the nodes and inputs that were added last."""
        gone = [name for node in self.g.nodes[start:] for name in node.output]
        for name in (*gone, *(spec.name for spec in self.specs[inputs:])):
            self.arrays.pop(name, None)
        del self.g.nodes[start:], self.specs[inputs:], self.g._inputs[inputs:]
        self.pool = [v for v in self.pool if v.name in self.arrays]
        for names in self.values.values():
            names[:] = [n for n in names if n in self.arrays]

    def now(self, name: str) -> Array:
        """What a value is for the first feed; nodes that did not run yet run now.

        Raises:
            NodeFailed: One does not.
        """
        for node in self.g.nodes if name not in self.arrays else ():
            if any(o and o not in self.arrays for o in node.output):
                list(self._run(node))
        return self._array(name)

    def rule_on(self, name: str) -> str:
        """A value behind an operator of any kind that keeps its shape; itself without one."""
        x = self.now(name)
        value = Value(name, x, is_low(x))
        groups = samples_by_operator(self.opset)
        for _ in range(8):
            group = groups[self.rng.integers(len(groups))]
            sample = group[self.rng.integers(len(group))]
            start, inputs = len(self.g.nodes), len(self.specs)
            try:
                if self._place(sample, value):
                    for found in self.g.nodes[-1].output:
                        y = self.now(found)
                        if y.shape == x.shape and y.dtype.kind in "biuf":
                            return found
            except NodeFailed:
                pass
            self._take_back(start, inputs)
        return name

    def memory(self) -> str:
        """Rows of another length than the sequence: what cross attention looks at."""
        known = [s.name for s in self.specs if s.name == "memory"]
        shape = (BATCH, KEYS, WIDTH)
        return known[0] if known else self._add_input("memory", np.dtype(np.float32), shape)

    def add_input(
        self, stem: str, dtype: Any, shape: tuple[int, ...], levels: Levels | None
    ) -> str:
        """A new input of an attention block, or one like it again.

        Raises:
            NodeFailed: There are enough inputs.
        """
        like = [
            s.name for s in self.specs if s.name.rpartition("_")[0] == stem and s.dtype == dtype
        ]
        like = [name for name in like if self.arrays[name].shape == shape]
        if like and self.rng.random() < 0.3:
            return like[0]
        if len(self.specs) >= MAX_INPUTS:
            raise NodeFailed("too many inputs")
        return self._add_input(f"{stem}_{len(self.specs)}", dtype, shape, levels=levels)

    def _run(self, node: onnx.NodeProto) -> Iterator[Value]:
        """Values of a new node.

        Raises:
            NodeFailed: It does not run, or leaves the range of numbers.
        """
        operands = [self._array(name) if name else None for name in node.input]
        if is_control(node):
            around = {n: self._array(n) for n in names_read([node]) if n and self._is_known(n)}
            found = run_control(node, around, self.opset)
        else:
            baked = [self.g.tensor(name) is not None for name in node.input]
            try:
                found = run_node(node, operands, self.opset)
            except NodeFailed:
                found = run_node(node, operands, self.opset, baked)
        known = all(finite(x) for x in operands)
        loose = node.op_type in DATA_SHAPED or any(
            v.loose for v in self.pool if v.name in node.input
        )
        values = []
        for name, x in zip(node.output, found, strict=True):
            if not name or not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
                continue
            if known and not finite(x) and node.op_type != "Softmax":
                raise NodeFailed("overflow, or outside of the operator's domain")
            self.arrays[name] = x
            values.append(Value(name, x, is_low(x), loose))
        return iter(values)

    def _is_known(self, name: str) -> bool:
        return name in self.arrays or self.g.tensor(name) is not None

    def _array(self, name: str) -> Array:
        constant = self.g.tensor(name)
        if constant is not None:
            return constant
        if name not in self.arrays:
            raise NodeFailed(f"{name} is no tensor")
        return self.arrays[name]

    def _enter(self, value: Value) -> None:
        """Add a value to those that later steps may read, scaled down where it is large."""
        x = value.array
        if x.dtype.kind in "iu" and x.size and np.abs(x.astype(np.float64)).max() > LARGE_INT:
            return
        if x.dtype == np.float32:
            size = np.abs(x[np.isfinite(x) & (x > LOW)]).max(initial=0)
            if size > LARGE and not value.low:
                scale = self.g.const(2.0 ** -np.ceil(np.log2(float(size))))
                self._step(lambda: self.g.op("Mul", value.name, scale))
                return
        self.pool.append(value)
        if x.dtype.itemsize in (1, 4) and not value.low and not value.loose:
            for kind in KINDS.get((x.dtype.kind, x.shape), ()):
                self.values[kind].append(value.name)

    def any(self, kind: str) -> str:
        if not self.values[kind]:
            raise NodeFailed(f"no {kind}")
        return super().any(kind)

    def _add_input(
        self,
        name: str,
        dtype: Any,
        shape: tuple[int, ...],
        limits: tuple[float, float] | None = None,
        levels: Levels | None = None,
    ) -> str:
        names = {BATCH: "batch", SEQ: "seq", KEYS: "keys", BATCH * SEQ: "tokens"}
        dims = tuple(n if self.static else names.get(n, n) for n in shape)
        spec = Input(name, dtype, dims, limits, levels)
        self.specs.append(spec)
        self.g.input(name, dtype, dims)
        rng = np.random.default_rng(len(self.specs))
        value = Value(name, spec.draw(self.sizes(BATCH, SEQ, KEYS), "holes", rng))
        self.arrays[name] = value.array
        self._enter(value)
        return name

    @staticmethod
    def sizes(batch: int, seq: int, keys: int) -> dict[str, int]:
        return {"batch": batch, "seq": seq, "keys": keys, "tokens": batch * seq}

    def _rule(self) -> None:
        """One node from the rule tables.

        Raises:
            NodeFailed: No value fits any of a few samples.
        """
        groups = samples_by_operator(self.opset)
        for _ in range(6):
            group = groups[self.rng.integers(len(groups))]
            if self._place(group[self.rng.integers(len(group))]):
                return
        raise NodeFailed("no sample fits")

    def _place(self, sample: Sample, given: Value | None = None) -> bool:
        dtypes = {np.dtype(np.float32): np.dtype(np.float32)}
        if not sample.domain and self.rng.random() > 0.92:
            other = (np.float64, np.float16)[self.rng.integers(2)]
            dtypes[np.dtype(np.float32)] = np.dtype(other)
        bound: dict[int, int] = {}
        names: list[str | None] = []
        taken: list[Value] = []
        place = -1 if given is None else self._place_of(sample, given)
        if given is not None:
            if place < 0:
                return False
            taken.append(given)
            bound = bind(array_of(sample.operands[place]).shape, given.array.shape, {}) or {}
        for i, operand in enumerate(sample.operands):
            if given is not None and i == place:
                names.append(self._in_domain(sample, i, array_of(operand), given))
                continue
            if operand is None:
                names.append("")
                continue
            x = array_of(operand)
            dtype = dtypes.get(x.dtype, x.dtype)
            fits = (
                [] if isinstance(operand, Const) else self._fitting(sample, i, dtype, bound, taken)
            )
            if fits and (not taken or self.rng.random() < 0.6):
                value = fits[-1 - self._recent(len(fits))]
                taken.append(value)
                bound.update(bind(x.shape, value.array.shape, bound) or {})
                names.append(self._in_domain(sample, i, x, value))
            else:
                names.append(None)
        if sample.operands and not taken and self.rng.random() < 0.9:
            return False
        for i, name in enumerate(names):
            if name is None:
                names[i] = self._made(sample, i, bound, dtypes)
        self.g.node(sample, [n or "" for n in names])
        return True

    def _place_of(self, sample: Sample, value: Value) -> int:
        """Which operand of a sample a value can be; -1: none."""
        fits = [
            i
            for i, operand in enumerate(sample.operands)
            if operand is not None
            and not isinstance(operand, Const)
            and array_of(operand).dtype == value.array.dtype
            and not (array_of(operand).dtype.kind in "iu" and (sample.op, i) in DIVISORS)
            and bind(array_of(operand).shape, value.array.shape, {}) is not None
        ]
        return fits[self.rng.integers(len(fits))] if fits else -1

    def _recent(self, count: int) -> int:
        """The place of a value from the end, late ones more often."""
        return min(self.rng.integers(count), self.rng.integers(count))

    def _fitting(
        self, sample: Sample, i: int, dtype: Any, bound: dict[int, int], taken: list[Value]
    ) -> list[Value]:
        x = array_of(sample.operands[i])
        divisor = (sample.op, i) in DIVISORS  # an integer 0 would end the process
        if x.dtype.kind in "iu" and (x.ndim == 0 or divisor):
            return []
        return [
            v
            for v in self.pool
            if v.array.dtype == dtype
            and not (v.low and (sample.op not in LOW_READERS or any(t.low for t in taken)))
            and not (v.loose and (taken or len(sample.operands) > 1))
            and not any(t.loose for t in taken)
            and (v.array.size or sample.op in ZERO_SAFE)
            and bind(x.shape, v.array.shape, bound) is not None
        ]

    def _in_domain(self, sample: Sample, i: int, x: Array, value: Value) -> str:
        """The value, brought into the domain of an operator that is not defined everywhere."""
        limits = domain(sample, i, x)
        if limits is None or value.array.dtype.kind != "f":
            return value.name
        low, high = (np.asarray(n, value.array.dtype) for n in limits)
        g = self.g
        part = g.op("Mul", g.op("Sigmoid", value.name), g.const(high - low, low.dtype))
        return g.op("Add", part, g.const(low, low.dtype))

    def _made(
        self, sample: Sample, i: int, bound: dict[int, int], dtypes: Mapping[Any, Any]
    ) -> str:
        """A new operand: an input of the graph, or a constant."""
        operand = sample.operands[i]
        x = array_of(operand)
        dtype = dtypes.get(x.dtype, x.dtype)
        fixed = isinstance(operand, Const)
        if fixed and (x.dtype.kind != "f" or not x.ndim):
            return self._constant(x.astype(dtype))
        extents = EXTENTS if sample.op in ZERO_SAFE else EXTENTS[:-1]
        shape = tuple(n if n == 1 else self._extent(n, bound, extents) for n in x.shape)
        limits = domain(sample, i, x)
        sized = bool({BATCH, SEQ, BATCH * SEQ} & set(shape))
        free = dtype.kind in "fb" or sample.op in FREE_INTS or function_of("", sample.op)
        wanted = self.rng.random() < (0.85 if sized and not self.static else 0.3)
        if free and not fixed and wanted and len(self.specs) < MAX_INPUTS:
            if dtype.kind in "iu" and x.size:
                limits = float(x.min()), float(x.max())
            return self._add_input(f"in{len(self.specs)}", dtype, shape, limits)
        if dtype.kind != "f":
            return self._constant(np.resize(x, shape))
        if limits is not None:
            low, high = limits
            made = low + (high - low) * (np.tanh(self.rng.normal(size=shape)) + 1) / 2
        elif self.rng.random() < 0.25:
            known = SPECIAL + LOW_SPECIAL * (sample.op in LOW_READERS)
            made = np.full(shape, known[self.rng.integers(len(known))])
        else:
            made = np.asarray(self.rng.normal(size=shape))
            if self.rng.random() < 0.2:
                made = np.where(np.abs(made) < 0.5, 0, made)
        return self._constant(made.astype(dtype))

    def _extent(self, n: int, bound: dict[int, int], extents: Sequence[int]) -> int:
        if n not in bound:
            bound[n] = extents[self.rng.integers(len(extents))] if self.rng.random() > 0.9 else n
        return bound[n]

    def _constant(self, x: Array) -> str:
        return self.g.weight(f"c{len(self.g._weights)}", np.asarray(x))

    def _choose_outputs(self, wanted: str | None) -> None:
        """Make values outputs: the wanted one alone most of the time, else a few others."""
        read = {name for node in self.g.nodes for name in node.input}
        made = [v for v in self.pool if v.name not in {s.name for s in self.specs}]
        ends = [v for v in made if v.name not in read] or made
        if self.rng.random() < 0.5:  # the padding contract gives up nothing of other outputs
            made = [v for v in made if v.array.shape[:2] == (BATCH, SEQ)] or made
            ends = [v for v in made if v.name not in read] or made
        picked: dict[str, Value] = {}
        if wanted is not None:
            picked[wanted] = next(v for v in self.pool if v.name == wanted)
        others = 1 + self.rng.integers(3) if wanted is None or self.rng.random() < 0.3 else 0
        for _ in range(others):
            group = ends if self.rng.random() < 0.8 else made
            value = group[-1 - self._recent(len(group))]
            picked[value.name] = value
        for value in picked.values():
            self.g.any_output(value.name, value.array.dtype)

    def feeds(self, seed: int, patterns: Sequence[Pattern]) -> Iterator[dict[str, Array]]:
        """One feed per pattern at the graph's own sizes, then one at other sizes."""
        rng = np.random.default_rng(seed)
        own = self.sizes(BATCH, SEQ, KEYS)
        for pattern in patterns:
            yield {s.name: s.draw(own, pattern, rng) for s in self.specs}
        if self.static:
            return
        ordinary = [n for n in OTHER_SIZES if all(n)]
        empty = [n for n in OTHER_SIZES if not all(n)]
        chosen = [ordinary[seed % len(ordinary)]]
        if all(n.op_type in ZERO_SAFE and not n.domain for n in self.g.nodes):
            chosen += [empty[seed % len(empty)], empty[(seed + 2) % len(empty)]]
        for sizes in chosen:
            named = self.sizes(*sizes)
            yield {s.name: s.draw(named, patterns[-1], rng) for s in self.specs}
