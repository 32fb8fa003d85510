"""Mutants of source text: one small change to one function or one constant of a module.

    if not hidden or clean is None:          if not hidden:
        return out                               return out

A mutant is a changed syntax tree of a module; `patching.py` puts it in force. Its key names module,
function, kind and text, so that it outlives changes elsewhere in the file.
"""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.Lambda)
STRICTNESS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
SWAPPED = {"any": "all", "all": "any", "min": "max", "max": "min"}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
}
ANYWHERE = {"Region": "EVERYWHERE", "Region | None": "EVERYWHERE", "list[Region]": "[EVERYWHERE]"}
SHOWN = 70  # characters of a mutant's text

Edit = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Change:
    """One way to damage a module.

    Args:
        key: Names it for good.
        module: The module's name.
        line: Where in the file.
        place: The node's number in the walk through the tree.
        edit: What is done to it.
        constant: Name of the module's constant that is changed, or of the class whose fields have
            other defaults; empty for code of functions.
    """

    key: str
    module: str
    line: int
    place: int
    edit: Edit
    constant: str = ""

    def tree(self) -> ast.Module:
        """The changed syntax tree."""
        tree, _ = parsed(self.module)
        twin = next(n for k, (n, _) in enumerate(_walk(tree)) if k == self.place)
        self.edit(twin)
        return ast.fix_missing_locations(tree)


def parsed(module: str) -> tuple[ast.Module, str]:
    """A module's syntax tree, and its file."""
    path = import_module(module).__file__ or ""
    return ast.parse(Path(path).read_text("utf-8")), path


def changes(module: str, skipped: frozenset[str] = frozenset()) -> Iterator[Change]:
    """All mutants of a module.

    Args:
        module: Its name.
        skipped: Functions and constants on which no answer rests, such as prices.
    """
    tree, _ = parsed(module)
    counts: Counter[str] = Counter()
    classes = {s.name for s in tree.body if isinstance(s, ast.ClassDef)}
    for place, (node, function) in enumerate(_walk(tree)):
        name = function or _constant(tree, node)
        if not name or name.split(".")[0] in skipped:
            continue
        for kind, edit in _edits(node, tree, function):
            text = " ".join(ast.unparse(node).split())[:SHOWN]
            label = f"{module.removeprefix('pitc.')}:{name} | {kind} | {text}"
            counts[label] += 1
            key = f"{label} | {counts[label]}" if counts[label] > 1 else label
            start = node.target if isinstance(node, ast.comprehension) else node
            line = getattr(start, "lineno", 0)
            yield Change(
                key, module, line, place, edit, name if name in classes or not function else ""
            )


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every node that may be changed, with the function that it stands in."""

    def inside(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
            for child in node.body:
                yield from inside(child, function)
            return
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom):
            return
        yield node, function
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from inside(child, function)

    for statement in tree.body:
        yield from inside(statement, "")


def _constant(tree: ast.Module, node: ast.AST) -> str:
    """The constant of the module in whose value a node stands."""
    for s in tree.body:
        target = s.targets[0] if isinstance(s, ast.Assign) else getattr(s, "target", None)
        if (isinstance(target, ast.Name) and target.id.isupper()) or _is_private(target):
            value = getattr(s, "value", None)
            if value is not None and any(n is node for n in ast.walk(value)):
                return str(getattr(target, "id", ""))
    return ""


def _is_private(target: Any) -> bool:
    return isinstance(target, ast.Name) and target.id.startswith("_") and target.id[1:].isupper()


def _edits(node: ast.AST, tree: ast.Module, function: str) -> Iterator[tuple[str, Edit]]:
    """What may be done to one node: a name and a function that does it in place."""
    yield from _conditions(node)
    yield from _expressions(node)
    if not function:
        yield from _tables(node)
    if isinstance(node, ast.Return) and node.value is not None:
        wide = ANYWHERE.get(_returned(tree, function))
        if wide is not None and ast.unparse(node.value) != wide:
            yield "everywhere", _set("value", lambda n: ast.parse(wide, mode="eval").body)


def _conditions(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.If(body=[ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            yield "drop guard", _set("test", lambda n: ast.Constant(False))
            yield "always", _set("test", lambda n: ast.Constant(True))
        case ast.If() | ast.While() | ast.IfExp():
            yield "negate", _set("test", lambda n: _negated(n.test))
        case ast.comprehension() if node.ifs:
            yield "drop filter", _set("ifs", lambda n: [])
            yield "negate filter", _set("ifs", lambda n: [_negated(n.ifs[0]), *n.ifs[1:]])
        case ast.BoolOp(values=[_, ast.Constant(value="")]):
            pass  # `x.name or ""` is for the type checker: values have names
        case ast.BoolOp():
            for k in range(len(node.values)):
                yield f"drop operand {k}", _without("values", k)
            flipped = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield "and/or", _set("op", lambda n: flipped())
        case ast.Compare(ops=[op]) if type(op) in STRICTNESS:
            yield "strictness", _set("ops", lambda n: [STRICTNESS[type(op)]()])
            turned = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}[type(op)]
            yield "turn", _set("ops", lambda n: [turned()])
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()]):
            opposite = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In}
            yield "opposite", _set("ops", lambda n: [opposite[type(n.ops[0])]()])
        case ast.Expr(value=ast.Call()):
            yield "drop statement", _set("value", lambda n: ast.Constant(None))


def _expressions(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.UnaryOp(op=ast.Not()):
            yield "drop not", _set("operand", lambda n: _negated(n.operand))
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield "drop minus", _set("op", lambda n: ast.UAdd())
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield "operator", _set("op", lambda n: OPERATORS[type(n.op)]())
        case ast.BinOp(op=ast.BitOr()):
            yield "left only", _set("right", lambda n: copy.deepcopy(n.left))
            yield "right only", _set("left", lambda n: copy.deepcopy(n.right))
        case ast.Constant():
            yield from _numbers(node)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield name, _set("func", lambda n: ast.Name(SWAPPED[name], ast.Load()))
        case ast.List(ctx=ast.Load()) | ast.Set() if node.elts:
            for k in range(len(node.elts)):
                yield f"drop element {k}", _without("elts", k)


def _tables(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.Tuple(ctx=ast.Load()) if len(node.elts) > 1:
            for k in range(len(node.elts)):
                yield f"drop element {k}", _without("elts", k)
        case ast.Dict():
            yield from _entries(node)


def _numbers(node: ast.Constant) -> Iterator[tuple[str, Edit]]:
    x = node.value
    if isinstance(x, bool):
        yield "flip", _set("value", lambda n: not n.value)
    elif isinstance(x, int):
        yield "plus one", _set("value", lambda n: n.value + 1)
        yield "minus one", _set("value", lambda n: n.value - 1)
    elif isinstance(x, float):
        yield "larger", _set("value", lambda n: n.value * 1.25)
        yield "smaller", _set("value", lambda n: n.value * 0.75)


def _entries(node: ast.Dict) -> Iterator[tuple[str, Edit]]:
    """A table without an entry, or with a neighbour's value in it."""

    def drop(k: int) -> Edit:
        def edit(n: ast.Dict) -> None:
            del n.keys[k], n.values[k]

        return edit

    def swap(k: int) -> Edit:
        def edit(n: ast.Dict) -> None:
            n.values[k] = copy.deepcopy(n.values[k - 1])

        return edit

    for k, key in enumerate(node.keys):
        title = "more" if key is None else ast.unparse(key)
        yield f"drop {title}", drop(k)
        same = ast.dump(node.values[k]) == ast.dump(node.values[k - 1])
        if key is not None and node.keys[k - 1] is not None and not same:
            yield f"as before {title}", swap(k)


def _set(name: str, made: Callable[[Any], Any]) -> Edit:
    return lambda n: setattr(n, name, made(n))


def _without(name: str, k: int) -> Edit:
    def edit(n: Any) -> None:
        del getattr(n, name)[k]
        if name == "values" and len(n.values) == 1:  # `and` of one operand is that operand
            n.values.append(ast.Constant(isinstance(n.op, ast.And)))

    return edit


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _returned(tree: ast.Module, function: str) -> str:
    """What a function is annotated to return."""
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for name in function.split("."):
        found = next((s for s in body if getattr(s, "name", "") == name), None)
        body = getattr(found, "body", [])
    returns = getattr(found, "returns", None)
    return "" if returns is None else ast.unparse(returns)
