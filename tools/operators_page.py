"""The page of operators, made from the rules: `python -m tools.operators_page`."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import onnx
import onnx_ir as ir

from pitc.ir.constant import TOP, ZN, Constant
from pitc.ir.expr import PRODUCTS, Combine, Read, Reducer, TensorExpr
from pitc.ir.graph import Graph, NodeView
from pitc.ir.index import ONE, ZERO, Atom, Poly, invert
from pitc.ir.refusal import Refusal
from pitc.ir.region import describe
from pitc.passes.expand.expansion import EXPANSIONS, ON_CPUS
from pitc.passes.exprs.derive import derive
from pitc.passes.regions.items import item_operands
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.constants import evaluate_constants, ignores
from pitc.passes.rules.record import OPERATORS, Key, Operator, always, operator_of, trust_all
from pitc.passes.rules.refused import REFUSED
from tools.specimens import specimen_model

PAGE = Path("docs", "operators.md")
HEADER = """\
# Operators

`python -m tools.operators_page` makes this page from the rules, for the
operators of onnx {version} and the fused operators of ONNX Runtime. A test fails if the page is
out of date.

An operator has a *rule*, which gives its tensor expression, or a *reason* why it has none. A node
without an expression runs unchanged and counts as a reader of all its operands; `pitc explain` says
why (`PIT001`). A rule also refuses the forms of its operator that are not proven.

* **expression**: how a typical node computes its first output. A reducer over reduction axes (`r0`,
  ..) is applied to a combination of the operands' elements. Output axes (`o0`, ..) index these. `?`
  is a place that other operands name, `*` a place without a description; `if` gives the condition
  under which a point reads.
* **PIT axes**: the axes of that node along which the work may be permuted.
* **fill**: the known value of the result where operands are 0 (`_` is any number).
* **dead**: the operands that inherit unread regions, and the output axes on which such a region may
  depend; along the other axes it must hold everywhere.
* **lowering**: *packed*: the operator runs on gathered rows. *by item*: only on gathered items of
  dimension 0 (images). *gather_gemm*, *attention* and *norm*: kernels of pitc. *in parts*: as
  the operators that it consists of; they become one node again if none of them is lowered.
  *ordinary*: the unchanged node.
* **record**: further properties beside the expression (`passes/rules/record.py`). A property that
  depends on the operands ends in `?`.
* **assumes**: the assumptions of rules and facts, and what checks them (below).
"""
COLUMNS = (
    *("operator", "since", "expression", "PIT axes", "fill", "dead", "lowering"),
    *("record", "assumes"),
)
ELSEWHERE = {"rule", "assumes", "function", "packs", "items", "kernels"}  # other columns


def schemas() -> dict[Key, list[onnx.defs.OpSchema]]:
    """All versions of every operator of the installed onnx, oldest first."""
    found: dict[Key, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return {
        key: sorted(versions, key=lambda s: s.since_version)
        for key, versions in sorted(found.items())
    }


def operators() -> list[Key]:
    """Every operator that is on the page, standard ones first."""
    return sorted({*schemas(), *OPERATORS, *REFUSED})


def page() -> str:
    """The page as text."""
    known = schemas()
    keys = operators()
    ruled = [key for key in keys if key in OPERATORS]
    parts = [HEADER.format(version=onnx.__version__)]
    for domain in dict.fromkeys(domain for domain, _ in ruled):
        parts.append(f"## Rules: {domain or 'ai.onnx'}\n")
        rows = [_row(key, known.get(key, [])) for key in ruled if key[0] == domain]
        parts.append(_table(COLUMNS, rows))
    parts.append("## Assumptions\n")
    checks = [(a.label, a.value.text, f"`{a.value.by}`") for a in Assumes]
    parts.append(_table(("name", "assumption", "checked by"), checks))
    parts.append("## No rule\n")
    refused = [
        (f"`{op}`", domain or "ai.onnx", _since(known.get((domain, op), [])), _reason((domain, op)))
        for domain, op in keys
        if (domain, op) not in OPERATORS
    ]
    parts.append(_table(("operator", "domain", "since", "reason"), refused))
    return "\n".join(parts)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [tuple(columns)]
    lines += [("---",) * len(lines[0]), *map(tuple, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _since(versions: list[onnx.defs.OpSchema]) -> str:
    """Operator sets that define the operator anew, and whether it is gone."""
    if not versions:
        return "1"
    live = [s.since_version for s in versions if not s.deprecated]
    text = f"{live[0]}" if len(live) == 1 else f"{live[0]}-{live[-1]}"
    last = versions[-1]
    return f"{text}, gone in {last.since_version}" if last.deprecated else text


def _reason(key: Key) -> str:
    reason = REFUSED.get(key)
    return "no rule" if reason is None else reason.value


def _row(key: Key, versions: list[onnx.defs.OpSchema]) -> tuple[str, ...]:
    domain, op = key
    live = [s.since_version for s in versions if not s.deprecated]
    opset = live[-1] if live else onnx.defs.onnx_opset_version()
    graph = Graph(ir.serde.deserialize_model(specimen_model(domain, op, opset)))
    derive(graph)
    expr = graph["y0"].expr
    if expr is None:
        raise ValueError(f"the specimen of {domain}::{op} is refused: {graph['y0'].unruled}")
    view = NodeView(graph, graph.nodes[0])
    return (
        f"`{op}`",
        _since(versions),
        f"`{expression(expr)}`",
        " ".join(a.name for a in expr.pit_axes()) or "none",
        "; ".join(_fills(view, expr)) or "none",
        _dead(view, expr),
        _lowering(key, view, expr),
        ", ".join(_properties(OPERATORS[key])) or "none",
        ", ".join(a.label for a in OPERATORS[key].rests_on(expr)) or "nothing",
    )


def _properties(operator: Operator) -> Iterator[str]:
    """The columns that are not their defaults."""
    function = operator.function
    if function is not None:
        yield "exact" if function.trusted is trust_all else "exact at landmarks"
        yield from (n for n in ("monotone", "boolean") if getattr(function, n))
        if function.image is not None:
            yield "in {} .. {}".format(*function.image)
    for column in fields(Operator):
        value = getattr(operator, column.name)
        if column.name in ELSEWHERE or value == column.default:
            continue
        name = column.name.replace("_", " ")
        if isinstance(value, tuple):
            yield f"{name} {' '.join(f'{n:+}' for n in value)}"
        elif column.name in ("finite", "square") and value is not always:
            yield f"{name}?"
        else:
            yield name


def expression(expr: TensorExpr) -> str:
    """A tensor expression as one line.

    Args:
        expr: The expression.
    """
    names = {a: axis.name for a, axis in enumerate(expr.axes)}
    terms = [_read(expr, read, names) for read in expr.reads]
    left = f"y[{', '.join(names[a] for a in range(len(expr.shape)))}]"
    right = f"{expr.combine.value}({', '.join(terms)})"
    if expr.reducer is not Reducer.NONE:
        reduced = ", ".join(names[a] for a in range(len(expr.shape), len(names)))
        right = f"{expr.reducer.value}[{reduced}] {right}"
    marks = sorted({*expr.normal, *expr.ordered})
    ordered = f"; by position: {', '.join(names[a] for a in marks)}" if marks else ""
    return f"{left} = {right}{ordered}"


def _read(expr: TensorExpr, read: Read, names: dict[int, str]) -> str:
    def place(p: Poly | None) -> str:
        if p is None:
            return "?" if read.computed else "*"
        return p.format(atom)

    def atom(a: Atom) -> str:
        if isinstance(a, str):
            return a
        whole = a.stride == ONE and a.extent == expr.extents[a.dim]
        return names[a.dim] if whole else a.format(names[a.dim])

    text = f"x{read.operand}[{', '.join(map(place, read.index))}]"
    return f"{text} if {describe(read.within, names)}" if read.within else text


def _fills(view: NodeView, expr: TensorExpr) -> Iterator[str]:
    """What is known of the result when operands are 0."""
    lines = ", ".join(a.name for a in expr.axes if not a.spatial)
    along = f" along {lines}" if lines else ""
    match expr.combine:
        case Combine.MAP if operator_of(view).function is not None:
            yield from _mapped(view, len(expr.reads))
        case Combine.MOVE:
            yield "every constant moves along"
        case Combine.PRODUCT:
            yield f"0 where a factor is 0{along}"
        case Combine.REDUCE if expr.reducer.keeps_constant:
            yield f"every constant that holds{along}"
        case Combine.REDUCE if expr.reducer.keeps_zero:
            yield f"0 where it is 0{along}"
        case Combine.SOFTMAX:
            yield "0 where the score is very negative"
        case Combine.SCATTER:
            yield "x0's, where a mask names the places and is 0"


def _mapped(view: NodeView, count: int) -> Iterator[str]:
    dtype = view.out_dtype(0)
    to_bool = dtype is not None and dtype.kind == "b"

    def result(constants: tuple[Constant, ...]) -> Constant:
        return evaluate_constants(view.op, constants, to_bool, view)

    single = []
    for j in range(count) if count > 1 else ():
        constants = tuple(0 if k == j else TOP for k in range(count))
        if result(constants) is not TOP:
            single.append(_arrow(constants, result(constants)))
    every = (0,) * count
    if len(single) < count and result(every) is not TOP:
        yield _arrow(every, result(every))
    yield from single


def _arrow(constants: tuple[Constant, ...], result: Constant) -> str:
    left = ", ".join("_" if c is TOP else f"{c}" for c in constants)
    number = f"{result + 0:g}" if isinstance(result, int | float) else str(result)
    return f"{left} -> {'0 or NaN' if result is ZN else number}"


def _dead(view: NodeView, expr: TensorExpr) -> str:
    """Operands that inherit unread regions, with the output axes that such a region may look at."""
    found: dict[int, list[set[int]]] = {}
    for read in expr.reads:
        shape = view.graph[view.name(read.operand)].shape
        solved = invert(read.index, expr.extents, shape) if shape is not None else {}
        axes = {d for d, p in solved.items() if d < len(expr.shape) and p != ZERO}
        found.setdefault(read.operand, []).append(axes)
    cells = []
    for operand, lists in sorted(found.items()):
        if axes := set.intersection(*lists):
            cells.append(f"x{operand}: {' '.join(f'o{d}' for d in sorted(axes))}")
    if expr.combine in PRODUCTS:
        cells.append("a factor where the other is 0")
    elif expr.combine is Combine.MAP and operator_of(view).function is not None:
        cells += _ignored(view, len(expr.reads))
    return "; ".join(cells) or "none"


def _ignored(view: NodeView, count: int) -> Iterator[str]:
    """Operands that do not matter where another one is 0."""
    for j in range(count):
        for k in range(count):
            constants = [0 if i == k else TOP for i in range(count)]
            if j != k and ignores(view.op, j, constants, view):
                yield f"x{j} where x{k} is 0"


def _lowering(key: Key, view: NodeView, expr: TensorExpr) -> str:
    operator = OPERATORS[key]
    if operator.kernels:
        return ", ".join(("packed", *operator.kernels))
    if key in EXPANSIONS:
        return "in parts"
    if key in ON_CPUS:
        return "in parts on CPUs; packed, by item"
    if _packed(operator, expr):
        return "packed"
    return "ordinary" if isinstance(item_operands(view, expr), Refusal) else "packed, by item"


def _packed(operator: Operator, expr: TensorExpr) -> bool:
    """True where the operator packs along any of its dimensions."""
    return operator.packs is not None or (expr.combine is Combine.MAP and bool(expr.reads))


def main() -> None:
    """Write the page into the checkout that is the current directory."""
    if not PAGE.parent.is_dir():
        sys.exit(f"error: {PAGE.parent} is not here; run this in a checkout")
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
