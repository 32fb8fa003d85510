"""Elementwise laws against ONNX Runtime on all operands that their constants stand for.

A grid is one node of one operator, type and attribute setting, run once over all combinations of
its operands' values. What a law says of some constants must hold at every point of the grid where
the operands are values that the constants stand for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from pitc.ir.branch import CHOOSE, DOMAIN
from pitc.ir.constant import TOP, ZN, Constant, Range, is_assumed, is_number
from pitc.ir.graph import NodeView
from pitc.passes.rules.constants import evaluate_constants, ignores
from pitc.passes.rules.record import OPERATORS, Operator
from tests.exhaustive_values import boundary, every, numbers_of, specials, stands_for
from tests.rule_proof import OPSET, Const, Sample, analysed, node_model

Array = Any
MS = "com.microsoft"
TYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
FLOATS = TYPES[:3]
NEW = {"Swish": 24, "BitCast": 26}  # operators that are newer than OPSET

# attributes besides the defaults
SETTINGS: dict[str, dict[str, Any]] = {
    "LeakyRelu": {"alpha": 0.3},
    "ThresholdedRelu": {"alpha": -0.5},
    "Shrink": {"bias": 0.25, "lambd": 1.0},
    "Elu": {"alpha": 0.5},
    "Celu": {"alpha": 0.5},
    "Selu": {"alpha": 1.0, "gamma": 2.0},
    "HardSigmoid": {"alpha": 0.5, "beta": 0.25},
    "Gelu": {"approximate": "tanh"},
    "Swish": {"alpha": 0.5},
    "QuickGelu": {"alpha": 1.0},
    "IsInf": {"detect_positive": 0},
}
SAME_WIDTH = {"float32": "int32", "int32": "float32", "int8": "uint8", "uint8": "int8"}
# operands beside the first are read along the last dimension, all by the same index
LINES = frozenset({"PRelu", "QuantizeLinear", "DequantizeLinear", "BiasGelu", "FastGelu"})
SEVERAL = frozenset({"Sum", "Mean", "Max", "Min"})
FEW = (0.0, -0.0, 1.0, -1.0, 0.5, -1e4, 1e4, np.inf, -np.inf)  # numbers where operands are three


@dataclass(frozen=True, eq=False)
class Case:
    """One operator on operands of some types, with attributes.

    Args:
        op: Operator type.
        domain: Its domain.
        types: Element types of the data operands.
        extra: Operands that are no data: bounds, types.
        attributes: Attributes of the node.
        opset: Version of the standard operator set.
    """

    op: str
    domain: str
    types: tuple[str, ...]
    extra: tuple[Any, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    opset: int = OPSET

    @property
    def title(self) -> str:
        """The case as text, for test ids."""
        marks = [f"{k}={v}" for k, v in self.attributes]
        marks += [f"{o.value}" if isinstance(o, Const) else f"{o.dtype}" for o in self.extra]
        return f"{self.domain[:3]}{self.op}({','.join(self.types)}){','.join(marks)}@{self.opset}"

    def sample(self, operands: Sequence[Array]) -> Sample:
        """The node on operands."""
        return Sample(
            self.op, (*operands, *self.extra), dict(self.attributes), self.domain, self.opset
        )


def cases() -> list[Case]:
    """All operators of the table, each in all types that ONNX gives it and both settings."""
    return [case for found in by_operator().values() for case in found]


def by_operator() -> dict[str, list[Case]]:
    """The same by the operator's title; those of three like operands, the slowest, apart."""
    keys = [key for key, row in OPERATORS.items() if row.function]
    keys.remove((DOMAIN, CHOOSE))  # which has the law of Where
    found: dict[str, list[Case]] = {}
    for domain, op in keys:
        for case in _cases(domain, op):
            three = op in SEVERAL and len(case.types) == 3
            found.setdefault(f"{domain[:3]}{op}{'-3' * three}", []).append(case)
    return found


def running(found: Iterable[Case]) -> list[Case]:
    """Those that ONNX Runtime has kernels for."""
    return [case for case in found if session(case) is not None]


def _cases(domain: str, op: str) -> Iterator[Case]:
    opset = NEW.get(op, OPSET)
    if op in ("QuantizeLinear", "DequantizeLinear"):
        yield from _quantised(domain, op)
        return
    for t in _types(domain, op, opset):
        if op in ("Clip", "Cast", "CastLike", "BitCast"):
            yield from _converted(op, t, opset)
            continue
        types = ("bool", t, t) if op == "Where" else (t,) * _arity(domain, op)
        for settings in _settings(domain, op, t):
            yield Case(op, domain, types, (), tuple(settings.items()), opset)
        if op in SEVERAL:
            yield from (Case(op, domain, (t,) * n) for n in (1, 3))


def _settings(domain: str, op: str, t: str) -> list[dict[str, Any]]:
    """Attributes of the nodes of an operator: the defaults, where they are allowed, and others."""
    if op == "BitShift":
        return [{"direction": way} for way in ("LEFT", "RIGHT")]
    if op == "Mod":
        return [{"fmod": 1}] if t in FLOATS else [{}, {"fmod": 1}]
    more = op in SETTINGS and (op, domain) != ("Gelu", MS)
    return [{}, SETTINGS[op]] if more else [{}]


def _quantised(domain: str, op: str) -> Iterator[Case]:
    axis = (("axis", 1),)
    for zero in ("uint8", "int8"):
        first = "float32" if op == "QuantizeLinear" else zero
        yield Case(op, domain, (first, "float32", zero), (), axis)
    if op == "DequantizeLinear":
        yield Case(op, domain, ("int32", "float32"), (), axis)


def _converted(op: str, t: str, opset: int) -> Iterator[Case]:
    """Operators of one operand with bounds or another type."""
    number = onnx.helper.np_dtype_to_tensor_dtype
    match op:
        case "Cast":
            yield from (Case(op, "", (t,), (), (("to", number(np.dtype(to))),)) for to in TYPES)
        case "CastLike":
            yield from (Case(op, "", (t,), (np.ones(1, to),)) for to in TYPES)
        case "BitCast" if t in SAME_WIDTH:
            to = number(np.dtype(SAME_WIDTH[t]))
            yield Case(op, "", (t,), (), (("to", to),), opset)
        case "Clip":
            bounds = [(), (1,), (1, 3), *([(-1e4, 0)] if t in FLOATS else [])]
            for some in bounds:
                yield Case(op, "", (t,), tuple(Const(np.array(n, t)) for n in some))
            if t in FLOATS:
                yield Case(op, "", (t,), (), (("max", 0.75), ("min", -2.0)), 6)


def _types(domain: str, op: str, opset: int) -> list[str]:
    """Types that the operator's schema allows its first data operand; floats for the fused."""
    if domain:
        return ["float16", "float32"]
    schema = onnx.defs.get_schema(op, opset, "")
    operand = schema.inputs[1 if op == "Where" else 0]
    names = {"float16": "float16", "float32": "float", "float64": "double"}
    return [t for t in TYPES if f"tensor({names.get(t, t)})" in operand.types]


def _arity(domain: str, op: str) -> int:
    if domain:
        return 2 if op in ("BiasGelu", "FastGelu") else 1
    if op in SEVERAL:
        return 2
    return onnx.defs.get_schema(op, NEW.get(op, OPSET), "").min_input


@cache
def session(case: Case) -> ort.InferenceSession | None:
    """ONNX Runtime on the case's node; None where it has no kernel."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    rank = len(case.types)
    shapes = [[2] * (rank if k == 0 or case.op not in LINES else 1) for k in range(rank)]
    if case.op in LINES:
        shapes[0] = [2, 2]
    operands = [np.ones(s, t) for s, t in zip(shapes, case.types, strict=True)]
    constant = [rank + i for i, x in enumerate(case.extra) if isinstance(x, Const)]
    model = node_model(case.sample(operands), constant, symbolic=False)
    for value in model.graph.input[: len(operands)]:
        for k, d in enumerate(value.type.tensor_type.shape.dim):
            d.dim_param = f"{value.name}_{k}"
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "NotImplemented" in type(error).__name__:
            return None
        raise


def allowed(row: Operator, k: int, c: Constant, x: Array) -> Array:
    """Which values of operand k, known to be c, an operator's laws must hold for.

    The rules ask a law only where an operand of which too little is known is finite; it may be
    minus infinity where it is bounded from above, and in sums (`_tame` in `passes/facts/fill.py`).
    Operators that select take what comes. What is "0 or NaN" is taken as it is.
    """
    if is_number(c) or c is ZN or row.selects:
        return np.ones(x.shape, bool)
    tame = isinstance(c, Range) and np.isfinite(c.hi) and not row.multiplies
    return np.isfinite(x) | ((x < 0) & np.isinf(x) & (tame or row.weight(k) > 0))


class Grid:
    """All combinations of some operand values, and the operator's results.

    Args:
        case: The operator.
        values: Values of each data operand.
    """

    def __init__(self, case: Case, values: Sequence[Array]) -> None:
        self.case = case
        self.values = [_allowed(case, k, x) for k, x in enumerate(values)]
        shape = tuple(map(len, self.values))
        operands = [
            x.reshape([-1 if d == k else 1 for d in range(len(shape))])
            for k, x in enumerate(self.values)
        ]
        if case.op in LINES:
            rows, *others = (np.ascontiguousarray(np.broadcast_to(x, shape)) for x in operands)
            rest = int(np.prod(shape[1:]))
            operands = [rows.reshape(-1, rest), *(x[0].reshape(-1) for x in others)]
        run = session(case)
        assert run is not None
        feeds = {f"x{k}": x for k, x in enumerate(operands)}
        for k, x in enumerate(case.extra):
            if not isinstance(x, Const):
                feeds[f"x{len(operands) + k}"] = x
        self.result = np.asarray(run.run(None, feeds)[0]).reshape(shape)
        graph = analysed(case.sample([np.ones(1, t) for t in case.types]))
        self.view = NodeView(graph, graph.nodes[0])
        self._where: dict[tuple[int, Constant, bool], Array] = {}

    def points(self, k: int, c: Constant, guarded: bool) -> Array:
        """Places of the values of operand k that a constant stands for.

        Guarded, it is what the rules let a law be asked about (`allowed`).
        """
        key = (k, c, guarded)  # -0.0 is 0: what stands for one stands for the other
        if key not in self._where:
            x = self.values[k]
            ok = stands_for(c, x)
            if guarded:
                ok &= allowed(OPERATORS[self.case.domain, self.case.op], k, c, x)
            self._where[key] = np.flatnonzero(ok)
        return self._where[key]

    def block(self, constants: Sequence[Constant], guarded: Sequence[bool]) -> tuple[Any, Array]:
        """The places and the results where the operands are as the constants say."""
        pairs = zip(constants, guarded, strict=True)
        places = [self.points(k, c, g) for k, (c, g) in enumerate(pairs)]
        rank = len(places)
        if rank == 1:
            return places, self.result[places[0]]
        open_ = [x[(slice(None), *(None,) * (rank - 1 - k))] for k, x in enumerate(places)]
        return places, self.result[tuple(open_)]

    def refuted(self, constants: Sequence[Constant], claim: Constant) -> str | None:
        """A point at which a claim about the result is wrong, as text."""
        places, y = self.block(constants, [True] * len(constants))
        bad = ~stands_for(claim, y)
        if not bad.any():
            return None
        return self._text(constants, places, np.argwhere(bad)[0], y, f"is not {claim}")

    def depends(self, constants: Sequence[Constant], j: int) -> str | None:
        """A point at which another value of operand j gives another result, as text."""
        free = [TOP if k == j else c for k, c in enumerate(constants)]
        places, y = self.block(free, [k == j for k in range(len(free))])
        if not y.size:
            return None
        first = np.take(y, [0], axis=j)
        same = (y == first) | ((y != y) & (first != first))
        if same.all():
            return None
        return self._text(constants, places, np.argwhere(~same)[0], y, f"depends on operand {j}")

    def _text(
        self, constants: Sequence[Constant], places: list[Array], at: Array, y: Array, what: str
    ) -> str:
        xs = [x[p[a]] for x, p, a in zip(self.values, places, at, strict=True)]
        given = ", ".join(map(repr, constants))
        shown = ", ".join(map(str, xs))
        return f"{self.case.title} of ({given}): f({shown}) = {y[tuple(at)]} {what}"

    def failures(self, tables: Sequence[Sequence[Constant]]) -> Iterator[str]:
        """What is wrong over all combinations of constants."""
        return (text for text in self._checked(tables) if text is not None)

    def _checked(self, tables: Sequence[Sequence[Constant]]) -> Iterator[str | None]:
        op = self.case.op
        to_bool = self.result.dtype.kind == "b"
        views = [self.view]
        plain = not self.case.domain and set(self.case.types) == {"float32"}
        for constants in product(*tables):
            for view in [*views, None] if plain else views:
                claim = evaluate_constants(op, constants, to_bool, view)
                if claim is not TOP:
                    yield self.refuted(constants, claim)
                if isinstance(claim, Range) and not claim.assumed:
                    proven = [TOP if is_assumed(c) else c for c in constants]
                    yield self.refuted(proven, claim)
            for j in range(len(constants)):
                if constants[j] is TOP and ignores(op, j, constants, self.view):
                    yield self.depends(constants, j)


def grids(case: Case) -> Iterator[tuple[Grid, list[list[Constant]]]]:
    """The grids of a case, with the constants to ask for each operand.

    Of one operand all values of up to 16 bits are taken, of two operands all of 8 bits and all of
    16 bits on one side at a time.
    """
    rank = len(case.types)
    tables: list[list[Constant]] = []
    for t in case.types:
        numbers = numbers_of(boundary(t))
        if rank == 3 and case.op != "Where":
            numbers = [n for n in FEW if n in numbers]
        tables.append([*numbers, *specials(t)])
    if rank == 2 and "float16" in case.types:
        for k in range(2):
            sides = [every(t) if j == k else boundary(t) for j, t in enumerate(case.types)]
            yield Grid(case, sides), tables
        return
    small = rank == 1 or (rank == 2 and np.dtype(case.types[0]).itemsize == 1)
    values = [every(t) if small else boundary(t) for t in case.types]
    if rank == 3 and case.op == "Sum":  # no partial sum overflows: a named assumption
        values = [x[np.isinf(x) | (np.abs(x) < np.finfo(x.dtype).max / 4)] for x in values]
    yield Grid(case, values), tables


def _allowed(case: Case, k: int, x: Array) -> Array:
    """Without operands at which ONNX Runtime traps: integer divisors 0, and the least by -1."""
    if case.op not in ("Div", "Mod") or x.dtype.kind not in "iu":
        return x
    return x[x != 0] if k == 1 else x[x != np.iinfo(x.dtype).min] if x.itemsize > 1 else x


def failures(case: Case) -> Iterator[str]:
    """What is wrong with the laws of a case."""
    for grid, tables in grids(case):
        yield from grid.failures(tables)
