"""Integers that a graph computes from sizes and positions, against ONNX Runtime.

Each program is a graph of many independent nodes over the sizes `a` and `b` of an input. It is
analysed once; then symbolic values, affine functions, shapes and fill facts are compared with the
real values for all sizes 0..4.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as ort_errors

from models.graph import GraphBuilder
from pitc.ir.graph import Graph
from pitc.passes.audit.points import sizes_of, where
from pitc.passes.audit.symbols import wrong_symbols
from pitc.passes.facts.fill import fill_facts
from tests.exhaustive_values import stands_for

Array = Any
OPSET = 21
SIZES = range(5)
FAR = 1 << 40
PARTS = 4  # of the programs of one node
TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TWO_OPERANDS = ("Add", "Sub", "Mul", "Max", "Min")
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


class Program:
    """A graph over the sizes of `x: float[a, b]`, with what its nodes are made from.

    Args:
        dtype: Element type of the numbers.
        columns: Sizes that `b` takes; `a` takes all.
    """

    def __init__(self, dtype: str = "int64", columns: Sequence[int] = SIZES) -> None:
        self.sizes = list(product(SIZES, columns))
        self.g = GraphBuilder("integers", OPSET)
        self.dtype = np.dtype(dtype)
        self.x = self.g.input("x", np.float32, ("a", "b"))
        self.rows, self.columns = (self.g.size(self.x, k) for k in range(2))

    def number(self, n: int) -> str:
        """A constant scalar of the program's type."""
        return self.g.const(n, self.dtype)

    def cast(self, value: str, dtype: Any = None) -> str:
        """A value in the program's type, or another."""
        to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        return self.g.op("Cast", value, to=to)

    def places(self, size: str) -> str:
        """0, 1, 2, .. below a size."""
        zero, one = (self.g.const(n, np.int64) for n in (0, 1))
        return self.cast(self.g.op("Range", zero, size, one))

    def numbers(self) -> list[int]:
        """Small numbers, and the type's limits."""
        info = np.iinfo(self.dtype)
        wide = [info.max, info.max - 1, info.min, info.min + 1, (int(info.max) + 1) // 2]
        return sorted({n for n in (-3, -1, 0, 1, 2, 3, *map(int, wide)) if n >= info.min})

    def model(self) -> onnx.ModelProto:
        """The model, of which every value is an output."""
        graph = onnx.helper.make_graph(
            self.g._nodes,
            "integers",
            self.g._inputs,
            [onnx.ValueInfoProto(name=name) for node in self.g._nodes for name in node.output],
            list(self.g._weights.values()),
        )
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@cache
def has_kernel(op: str, dtype: Any, operands: int) -> bool:
    """True where ONNX Runtime computes an operator in a type."""
    node = onnx.helper.make_node(op, [f"x{k}" for k in range(operands)], ["y"])
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [onnx.helper.make_tensor_value_info(n, element, [1]) for n in node.input]
    graph = onnx.helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    try:
        session(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    except (ort_errors.NotImplemented, ort_errors.InvalidGraph):
        return False
    return True


def arithmetic(dtype: str) -> Program:
    """Places, sizes and constants with every number, in a type that wraps around."""
    p = Program(dtype)
    info, columns = np.iinfo(p.dtype), p.g.op("Unsqueeze", p.places(p.columns), p.g.ints(0))
    rows = p.g.op("Unsqueeze", p.places(p.rows), p.g.ints(1))
    operands = [
        *(p.cast(p.rows), p.places(p.rows)),
        p.g.const([info.max - 2, info.max - 1, info.max], p.dtype),
        p.g.const([info.min, info.min + 1], p.dtype),
        p.g.const([[0, 3, 6], [10, 13, 16]], p.dtype),
    ]
    if has_kernel("Add", dtype, 2):
        operands.append(p.g.op("Add", rows, columns))
    found = []
    for op, x, n in product(TWO_OPERANDS, operands, p.numbers()):
        if has_kernel(op, dtype, 2):
            found += [p.g.op(op, x, p.number(n)), p.g.op(op, p.number(n), x)]
    for op, x, n in product(("Div", "Mod"), operands, p.numbers()):
        if n not in (0, -1) and has_kernel(op, dtype, 2):  # ONNX Runtime traps
            found.append(p.g.op(op, x, p.number(n)))
    found += [
        p.g.op(op, x) for op, x in product(("Neg", "Abs"), operands) if has_kernel(op, dtype, 1)
    ]
    for x in (*operands, *found[::3]):
        for to in TYPES if x in operands else ("int64", "int8"):
            p.cast(x, to)
    return p


def positions(dtype: str) -> Program:
    """Comparisons of places that wrap around with numbers and with run-time lengths."""
    p = Program(dtype, columns=(0, 4))
    lengths = p.g.input("lengths", p.dtype, ("b",))
    place = p.places(p.rows)
    values = [place]
    for op in ("Add", "Sub", "Mul"):
        if has_kernel(op, dtype, 2):
            values += [p.g.op(op, place, p.number(n)) for n in p.numbers()]
    if has_kernel("Neg", dtype, 1):
        values.append(p.g.op("Abs", p.g.op("Sub", place, p.number(2))))
    for op, value in product(COMPARISONS, values):
        if not has_kernel(op, dtype, 2):
            continue
        for n in p.numbers()[::2]:
            p.g.op(op, value, p.number(n))
        column = p.g.op("Unsqueeze", value, p.g.ints(1))
        p.g.op(op, column, lengths)
        p.g.op(op, lengths, column)
    return p


def _bounds(p: Program) -> list[str]:
    """Numbers and computed sizes, as vectors of one element."""
    numbers = [p.g.ints(n) for n in (-FAR, -5, -2, -1, 0, 1, 2, 4, FAR)]
    row = p.g.op("Unsqueeze", p.rows, p.g.ints(0))
    column = p.g.op("Unsqueeze", p.columns, p.g.ints(0))
    less = [p.g.op("Sub", row, p.g.ints(n)) for n in (1, 2)]
    return [*numbers, row, column, *less, p.g.op("Neg", row), p.g.op("Add", row, p.g.ints(1))]


def slices() -> Program:
    """Slices of places and of rows, by numbers and by computed sizes."""
    p = Program()
    place, bounds = p.places(p.rows), _bounds(p)
    for start, end, step in product(bounds, bounds, (1, -1)):
        p.g.op("Slice", p.x, start, end, p.g.ints(0), p.g.ints(step))
    for start, end, step in product(bounds[:9], bounds[:9], (1, 2, -1, -3)):
        p.g.op("Slice", place, start, end, p.g.ints(0), p.g.ints(step))
    return p


def ranges(dtype: str) -> Program:
    """Ranges between numbers and sizes, with steps that may leave nothing."""
    p = Program(dtype)
    row, column = p.cast(p.rows), p.cast(p.columns)
    ends = [*(p.number(n) for n in (-2, 0, 3, 5)), row, column]
    if has_kernel("Sub", dtype, 2):
        ends += [p.g.op("Sub", row, p.number(2)), p.g.op("Mul", row, column)]
    for start, end, step in product(ends, ends, (1, 2, -1, -2)):
        p.g.op("Range", start, end, p.number(step))
    return p


def shapes() -> Program:
    """What exporters compute with sizes."""
    p = Program()
    g, numbers = p.g, [p.number(n) for n in (-1, 0, 1, 2, 3)]
    whole, total = g.op("Shape", p.x), g.op("Size", p.x)
    for start, end in product((None, -3, -2, -1, 0, 1, 2, 3), repeat=2):
        named = {"start": start, "end": end}
        some: dict[str, Any] = {k: v for k, v in named.items() if v is not None}
        g.op("Shape", p.x, **some)
    scalars = [p.rows, p.columns, total, g.op("Sub", p.rows, p.number(2))]
    scalars += [g.op("Mul", p.rows, p.number(n)) for n in (2, -1)]
    for op, x, y in product((*TWO_OPERANDS, *COMPARISONS), scalars, (*scalars, *numbers)):
        found = g.op(op, x, y)
        if op in COMPARISONS:
            g.op("Where", found, x, y)
            g.op("Not", found)
    for x, n in product(scalars, (2, 3, -2)):
        g.op("Div", x, p.number(n))
        g.op("Mod", x, p.number(n))
    for k in (-2, -1, 0, 1):
        g.op("Gather", whole, g.const(k, np.int64))
        g.op("Gather", whole, g.ints(k, 0))
    both = g.op("Concat", whole, whole, axis=0)
    for start, end, step in product((-5, -2, 0, 1, 3), (-3, -1, 0, 2, 9), (1, 2, -1)):
        g.op("Slice", both, g.ints(start), g.ints(end), g.ints(0), g.ints(step))
    g.op("ReduceProd", whole, keepdims=0)
    g.op("ReduceProd", both, keepdims=1)
    g.op("Transpose", g.op("Reshape", both, g.ints(2, 2)))
    return p


def _dims(p: Program) -> Iterator[str]:
    """Vectors of sizes, negative ones among them."""
    more = p.g.op("Sub", p.rows, p.number(2))
    least = p.g.op("Max", more, p.number(0))
    for dims in ((p.rows,), (more,), (least,), (p.rows, p.columns), (least, 3), (2, more)):
        yield p.g.dims(*dims)


def _shaped(p: Program) -> list[Callable[[], str]]:
    """Nodes that ONNX Runtime may refuse for some sizes."""
    g, place, dims = p.g, p.places(p.rows), list(_dims(p))
    out: list[Callable[[], str]] = []
    for d in dims:
        out.append(lambda d=d: g.op("ConstantOfShape", d))
        out += [lambda d=d, v=v: g.op("Expand", v, d) for v in (place, p.number(3), p.x)]
    for target in ((-1,), (0, -1), (-1, 1), (-1, 2), (2, -1), (1, -1, 1)):
        for value in (place, p.x):
            out.append(lambda t=target, v=value: g.op("Reshape", v, g.ints(*t)))
    for before, after in product((-2, -1, 0, 1, 3), repeat=2):
        for value in (place, g.op("Transpose", place)):
            out.append(lambda b=before, e=after, v=value: g.op("Pad", v, g.ints(b, e)))
    for n in (0, 1, 3):
        out.append(lambda n=n: g.op("Tile", place, g.ints(n)))
        out.append(lambda n=n: g.op("Concat", place, g.ints(*range(n, 2 * n)), place, axis=0))
    out.append(lambda: g.op("Tile", place, g.op("Unsqueeze", p.columns, g.ints(0))))
    return out


def shaped(part: int) -> Iterator[Program]:
    """One program per node that may fail; a part of them."""
    for k in range(part, len(_shaped(Program())), PARTS):
        p = Program()
        p.cast(_shaped(p)[k](), "int64")
        yield p


def programs() -> dict[str, Callable[[], Iterable[Program]]]:
    """All programs, by name."""
    found: dict[str, Callable[[], Iterable[Program]]] = {}
    for dtype in TYPES:
        found[f"arithmetic-{dtype}"] = lambda t=dtype: [arithmetic(t)]
        found[f"positions-{dtype}"] = lambda t=dtype: [positions(t)]
    for dtype in ("int16", "int32", "int64"):
        found[f"ranges-{dtype}"] = lambda t=dtype: [ranges(t)]
    found |= {"slices": lambda: [slices()], "shapes": lambda: [shapes()]}
    return found | {f"shaped-{k}": lambda k=k: shaped(k) for k in range(PARTS)}


def text_of(model: onnx.ModelProto, name: str) -> str:
    """A value as the expression that computes it."""
    made = {output: node for node in model.graph.node for output in node.output}
    given = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in model.graph.initializer}

    def text(name: str) -> str:
        node = made.get(name)
        if node is None:
            return str(given.get(name, name))
        named = [f"{a.name}={onnx.helper.get_attribute_value(a)}" for a in node.attribute]
        return f"{node.op_type}({', '.join([*map(text, node.input), *named])})"

    return text(name)


def failures(program: Program) -> Iterator[str]:
    """What is wrong for some sizes, as text, each value once."""
    model = program.model()
    graph = Graph(ir.serde.deserialize_model(model))
    fill_facts(graph)
    run = session(model)
    names = [output.name for output in run.get_outputs()]
    constants = {n: x for n in graph.constants() if (x := graph.array(n)) is not None}
    wrong: set[str] = set()
    for a, b in program.sizes:
        feeds: dict[str, Array] = {"x": np.zeros((a, b), np.float32)}
        if any(v.name == "lengths" for v in run.get_inputs()):
            lengths = np.array(program.numbers()[1::2], program.dtype)
            feeds["lengths"] = np.resize(lengths, 4)[:b]
        try:
            found = run.run(None, feeds)
        except (ort_errors.RuntimeException, ort_errors.InvalidArgument, ort_errors.Fail):
            continue
        values: dict[str, Array] = constants | feeds | dict(zip(names, found, strict=True))
        sizes, clashes = sizes_of(graph, values)
        symbols, fills = wrong_symbols(graph, values, sizes), wrong_fills(graph, values, sizes)
        for line in chain(clashes, symbols, fills):
            key = next((w.rstrip(":") for w in line.split() if w.rstrip(":") in values), line)
            if key not in wrong:
                wrong.add(key)
                yield f"a={a}, b={b}: {line}: {text_of(model, key)}"


def wrong_fills(graph: Graph, values: dict[str, Array], sizes: dict[str, int]) -> Iterator[str]:
    for name, facts in [(n, x.fills) for n, x in graph.values.items()]:
        x = values.get(name)
        if x is None:
            continue
        for f in facts:
            try:
                here = where(f.region, x.shape, sizes, values)
            except OverflowError:  # a bound beyond 64 bits, which numpy cannot compare
                continue
            if not stands_for(f.constant, x)[here].all():
                yield f"fill of {name} is not {f.constant!r} where {f.region}"
