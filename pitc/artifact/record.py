"""Records of the manifest: frozen dataclasses, read from JSON strictly.

Every field is there and no other, each of its declared type; nothing is converted. Where an
artifact runs, no library for this need be installed.
"""

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

R = TypeVar("R")


def read_record(kind: type[R], body: object, place: str = "") -> R:
    """Make a record of what JSON holds.

        Source, {"name": "m.onnx", "sha256": "0f.."}  ->  Source("m.onnx", "0f..")
        Source, {"name": 1, "sha256": "0f.."}         ->  name: expected str, found int

    Args:
        kind: A dataclass, whose fields are str, int, lists and dictionaries of such, literals,
            records, one of these or None, or Any.
        body: The parsed JSON.
        place: Where it stands, for messages; empty for the whole.

    Raises:
        ValueError: It is no such record; the text says where.
    """
    if not isinstance(body, dict):
        raise _wrong(place, "an object", body)
    hints = get_type_hints(kind)
    known = fields(kind)  # type: ignore[arg-type]
    # what was written before a field came has its default
    names = [f.name for f in known if f.name in body or f.default is MISSING]
    for name in [n for n in (*names, *body) if (n in hints) != (n in body)]:
        found = "no such field" if name in body else "a field"
        raise ValueError(f"{_below(place, name)}: expected {found}")
    values = {name: _read(hints[name], body[name], _below(place, name)) for name in names}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}" if place else str(error)) from error


def _read(kind: Any, value: object, place: str) -> Any:
    """A value of a declared type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        if value is None:
            return None
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        return _read(kind, value, place)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(place, " or ".join(map(repr, arguments)), value)
        return value
    if is_dataclass(kind):
        return read_record(kind, value, place)  # type: ignore[arg-type]
    if type(value) is not (origin or kind):
        raise _wrong(place, (origin or kind).__name__, value)
    if isinstance(value, list):
        return [_read(arguments[0], item, _below(place, i)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        keys, items = arguments
        return {_read(keys, k, place): _read(items, v, _below(place, k)) for k, v in value.items()}
    return value


def _below(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _wrong(place: str, expected: str, found: object) -> ValueError:
    text = f"expected {expected}, found {type(found).__name__}"
    return ValueError(f"{place}: {text}" if place else text)
