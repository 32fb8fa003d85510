"""Puts a mutant in force in a process that has everything imported.

The code of live functions is exchanged, so that every reference to a function, in whatever module,
table or cache, runs the mutant. Meant for a forked child: nothing is put back.
"""

import ast
import functools
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from pitc.ir.expr import TensorExpr
from pitc.ir.graph import NodeView
from pitc.ir.region import EVERYWHERE
from pitc.passes.rules.record import OPERATORS, Key, Operator, Rule
from tests.mutation.source import Change, parsed
from tests.mutation.tables import ALL, COLUMNS, DAMAGES, INDEX_MAPS, Entry, Mark

HITS = "__mutation_hits__"
MISSING = object()


class NoMutant(Exception):
    """The change does not make another program."""


def codes(code: CodeType) -> dict[tuple[str, int], list[CodeType]]:
    """The code of a module and of all that is defined in it, by qualified name and line."""
    found = {(code.co_qualname, code.co_firstlineno): [code]}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for place, inner in codes(constant).items():
                found.setdefault(place, []).extend(inner)
    return found


def paired(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Code of a module and of its mutant that stands at the same place.

    The mutant may lack some: nothing is compiled behind a guard that never holds.
    """
    twins = codes(new)
    for place, found in codes(old).items():
        if len(twins.get(place, ())) == len(found):
            yield from zip(found, twins[place], strict=True)


def exchange(module: str, tree: ast.Module) -> int:
    """Exchange the code of a module's functions.

    Args:
        module: Its name.
        tree: Its changed syntax tree, with the same functions at the same places.

    Returns:
        How many live functions have other code now.
    """
    plain, path = parsed(module)
    pairs = paired(compile(plain, path, "exec"), compile(tree, path, "exec"))
    twins = {a: b for a, b in pairs if a != b}
    done = 0
    for function in _functions():
        twin = twins.get(function.__code__) if function.__module__ == module else None
        if twin is not None and len(twin.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = twin
            done += 1
    return done


def put_in_force(change: Change | Entry) -> None:
    """Make the running program the mutant.

    Raises:
        NoMutant: Nothing that runs is changed.
    """
    forget()
    if isinstance(change, Entry):
        change.put()
        return
    try:
        if change.constant:
            _set_constant(change)
            return
        vars(sys.modules[change.module]).setdefault("EVERYWHERE", EVERYWHERE)
        done = exchange(change.module, change.tree())
    except (SyntaxError, ValueError) as error:
        raise NoMutant(str(error)) from error
    if not done:
        raise NoMutant("no live function has this code")


@contextmanager
def ready_to_fork() -> Iterator[None]:
    """Children copy no pages to look for garbage, or for what they exchange, in old objects."""
    _functions()
    _caches()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _objects() -> list[object]:
    gc.unfreeze()  # what tests/conftest.py froze is not listed
    return gc.get_objects()


@functools.cache
def _functions() -> list[FunctionType]:
    found = [x for x in _objects() if isinstance(x, FunctionType)]
    return [f for f in found if str(f.__module__).startswith("pitc.")]


@functools.cache
def _caches() -> list[Any]:
    found = [x for x in _objects() if isinstance(x, functools._lru_cache_wrapper)]
    return [x for x in found if str(getattr(x, "__module__", "")).startswith("pitc.")]


def forget() -> None:
    """Empty all caches of the program."""
    for cached in _caches():
        cached.cache_clear()


def _set_constant(change: Change) -> None:
    names = vars(sys.modules[change.module])
    if isinstance(names.get(change.constant), type):
        _set_defaults(names[change.constant], change.tree())
        return
    found = (_value(s, change.constant) for s in change.tree().body)
    value = next(v for v in found if v is not None)
    old = names.get(change.constant, MISSING)
    try:
        new = eval(compile(ast.Expression(value), change.module, "eval"), dict(names))
    except Exception as error:
        raise NoMutant(f"{error!r}") from error
    if old is MISSING or (repr(old) == repr(new) and not isinstance(old, dict)):
        raise NoMutant("the value is the same")
    replace_everywhere(change.constant, old, new)


def _set_defaults(holder: type, tree: ast.Module) -> None:
    """Exchange the defaults of a dataclass's fields."""
    body = next(s.body for s in tree.body if getattr(s, "name", "") == holder.__name__)  # type: ignore[attr-defined]
    new = {
        ast.unparse(s.target): s.value.value
        for s in body
        if isinstance(s, ast.AnnAssign) and isinstance(s.value, ast.Constant)
    }
    made = vars(holder).get("__init__")
    old = (made.__defaults__ or ()) if isinstance(made, FunctionType) else ()
    if not isinstance(made, FunctionType) or not old:
        raise NoMutant("no field has a default")
    names = made.__code__.co_varnames[: made.__code__.co_argcount][-len(old) :]
    found = tuple(new.get(name, x) for name, x in zip(names, old, strict=True))
    if repr(found) == repr(old):
        raise NoMutant("no default is changed")
    made.__defaults__ = found


def replace_everywhere(name: str, old: Any, new: Any) -> None:
    """Exchange a constant in all modules, in tables in place, and where it is a default."""
    if isinstance(old, dict):
        old.clear()
        old.update(new)
        return
    _rebind(name, old, new)
    for f in _functions():
        if any(x is old for x in f.__defaults__ or ()):
            f.__defaults__ = tuple(new if x is old else x for x in f.__defaults__ or ())


def _rebind(name: str, old: Any, new: Any) -> None:
    for key, module in list(sys.modules.items()):
        if key.startswith(("pitc.", "tests.")) and vars(module).get(name, MISSING) is old:
            setattr(module, name, new)


def _value(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Name) and target.id == name:
            return statement.value
    return None


class _Marks(ast.NodeTransformer):
    """A mark before every statement of a function, which notes its line."""

    def __init__(self, module: str) -> None:
        self.module = module

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef):
            return node
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, name, [s for x in body for s in (self._mark(x), x)])
        if isinstance(node, ast.Match):
            for case in node.cases:
                case.body = [s for x in case.body for s in (self._mark(x), x)]
        return node

    def _mark(self, statement: ast.stmt) -> ast.stmt:
        mark = ast.parse(f"{HITS}.add(({self.module!r}, {statement.lineno}))").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, statement)
        return mark


def mark_lines(module: str, hits: set[Mark]) -> None:
    """Have a module's functions note each statement that they run."""
    tree, _ = parsed(module)
    vars(sys.modules[module])[HITS] = hits
    exchange(module, ast.fix_missing_locations(_Marks(module).visit(tree)))


def mark_operators(hits: set[Mark]) -> None:
    """Have the records note who is asked, and which damages change what a rule gives."""
    for operator, row in list(OPERATORS.items()):
        if row.rule is not None:
            OPERATORS[operator] = replace(row, rule=partial(_noting, operator, row.rule, hits))
    _rebind("OPERATORS", OPERATORS, _Noting(OPERATORS, hits))


class _Noting(dict[Key, Operator]):
    """The records; who asks for one is noted."""

    def __init__(self, records: Mapping[Key, Operator], hits: set[Mark]) -> None:
        super().__init__(records)
        self.hits = hits

    def __getitem__(self, key: Key) -> Operator:
        self.hits.add((COLUMNS, "::".join(key)))
        return super().__getitem__(key)

    def get(self, key: Key, default: Any = None) -> Any:
        self.hits.add((COLUMNS, "::".join(key)))
        return super().get(key, default)

    def __iter__(self) -> Iterator[Key]:
        self.hits.add((COLUMNS, ALL))
        return super().__iter__()

    def items(self) -> Any:
        self.hits.add((COLUMNS, ALL))
        return super().items()

    def values(self) -> Any:
        self.hits.add((COLUMNS, ALL))
        return super().values()


def _noting(
    operator: Key, rule: Rule, hits: set[Mark], view: NodeView
) -> Sequence[TensorExpr | None]:
    found = rule(view)
    for kind, damage in DAMAGES.items():
        mark = INDEX_MAPS, f"{INDEX_MAPS}:{'::'.join(operator)} | {kind}"
        if mark not in hits and any(e is not None and damage(e) != e for e in found):
            hits.add(mark)
    return found


def statements(module: str) -> dict[int, int]:
    """For each line of a module's functions the line of the statement that it is part of."""
    tree, _ = parsed(module)
    out: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            body: list[ast.stmt] = getattr(node, "body", [])
            end = body[0].lineno - 1 if body else node.end_lineno
            for line in range(node.lineno, max(end or 0, node.lineno) + 1):
                out[line] = node.lineno
    return out
