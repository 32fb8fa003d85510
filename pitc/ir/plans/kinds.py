"""Types of a plan's fields: each writes and reads its values, and refuses all others.

Whole(1, 64)    8 -> "8", "8" -> 8    "65", "08", "-1": refused
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints
from urllib.parse import quote, unquote

LONGEST_NAME = 1000  # bytes of a node's or a value's name
MOST_DIMS = 12


class Kind:
    """Type of a field."""

    __slots__ = ()
    what: ClassVar[str] = ""
    """What a value is, where that depends on nothing."""

    @property
    def told(self) -> str:
        """What a value is, for people."""
        return self.what

    def text(self, value: Any) -> str:
        """A value as a plan says it.

        Raises:
            ValueError: It is none of this type.
        """
        text = self._text(value)
        self.parse(text)
        return text

    def parse(self, text: str) -> Any:
        """The value that a text says.

        Raises:
            ValueError: It says none of this type.
        """
        found = self._parse(text)
        if found is None:
            raise ValueError(f"expected {self.told}, got {text!r}")
        return found

    def _text(self, value: Any) -> str:
        return str(value)

    def _parse(self, text: str) -> Any | None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number from `least` to `most`: decimal digits, no leading zeros."""

    least: int
    most: int

    @property
    def told(self) -> str:
        """What a value is."""
        return f"a whole number in {self.least}..{self.most}"

    def _text(self, value: int) -> str:
        return str(int(value))

    def _parse(self, text: str) -> int | None:
        fits = re.fullmatch(r"0|[1-9][0-9]*", text) and self.least <= int(text) <= self.most
        return int(text) if fits else None


EXTENT = Whole(1, 1 << 24)


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """True or False, as 1 or 0."""

    what = "0 or 1"

    def _text(self, value: bool) -> str:
        return str(int(value))

    def _parse(self, text: str) -> bool | None:
        return {"0": False, "1": True}.get(text)


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """One of some words."""

    choices: tuple[str, ...]

    @property
    def told(self) -> str:
        """What a value is."""
        return "one of " + ", ".join(self.choices)

    def _parse(self, text: str) -> str | None:
        return text if text in self.choices else None


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """At least one of some words, each at most once, in their order, with commas between them."""

    choices: tuple[str, ...]

    @property
    def told(self) -> str:
        """What a value is."""
        return f"some of {', '.join(self.choices)}, in that order"

    def _text(self, value: Sequence[str]) -> str:
        return ",".join(value)

    def _parse(self, text: str) -> tuple[str, ...] | None:
        parts = tuple(text.split(","))
        return parts if parts == tuple(x for x in self.choices if x in parts) else None


@dataclass(frozen=True, slots=True)
class ElementType(Word):
    """The type of numbers that kernels compute with."""

    choices: tuple[str, ...] = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class FileName(Kind):
    """A bare file name: letters, digits, `_`, `-` and `.`, not hidden."""

    what = "a bare file name"

    def _parse(self, text: str) -> str | None:
        return text if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", text) else None


@dataclass(frozen=True, slots=True)
class Identity(Kind):
    """Which build of a kernel library: `ABI/..`, letters, digits and `.+-_/`."""

    what = "ABI/.."

    def _parse(self, text: str) -> str | None:
        return text if re.fullmatch(r"(0|[1-9][0-9]*)/[A-Za-z0-9.+_/-]*", text) else None


@dataclass(frozen=True, slots=True)
class Symbols(Kind):
    """Kernels by what they are for, as pairs (role, symbol): `dense:KERNEL,row:KERNEL`."""

    what = "ROLE:KERNEL pairs with commas between them, each role once"

    def _text(self, value: Sequence[tuple[str, str]]) -> str:
        return ",".join(f"{role}:{symbol}" for role, symbol in value)

    def _parse(self, text: str) -> tuple[tuple[str, str], ...] | None:
        found = [re.fullmatch(r"([a-z_]+):([A-Za-z0-9_]+)", part) for part in text.split(",")]
        pairs = tuple((m[1], m[2]) for m in found if m)
        return pairs if len(dict(pairs)) == len(found) else None


@dataclass(frozen=True, slots=True)
class Read(Kind):
    """Where a step of a region finds an operand."""

    what = "rows, an input or sN"

    def _parse(self, text: str) -> str | None:
        return text if re.fullmatch(r"rows|s?(0|[1-9][0-9]*)", text) else None


@dataclass(frozen=True, slots=True)
class Real(Kind):
    """A finite float in C hexadecimal form, `0x1.8p-3`: exact."""

    what = "a finite float in hexadecimal form"

    def _text(self, value: float) -> str:
        return float(value).hex()

    def _parse(self, text: str) -> float | None:
        whole = re.fullmatch(r"-?0x[0-9a-f.]+p[+-]?[0-9]+", text)
        return float.fromhex(text) if whole else None


@dataclass(frozen=True, slots=True)
class Name(Kind):
    """Name of a node or a value: other bytes than letters, digits and `-._~/` are `%XX`."""

    what = "a name"

    def _text(self, value: str) -> str:
        """The name, of which what is too long is cut off."""
        return quote(value.encode("utf-8", "replace")[:LONGEST_NAME].decode("utf-8", "ignore"))

    def _parse(self, text: str) -> str | None:
        found = unquote(text)
        return found if text and quote(found) == text else None


@dataclass(frozen=True, slots=True)
class Place(Kind):
    """A whole number up to `most`, or `all`, which is None."""

    most: int

    @property
    def told(self) -> str:
        """What a value is."""
        return f"all, or a whole number up to {self.most}"

    def text(self, value: int | None) -> str:
        """The number, or `all`."""
        return "all" if value is None else Whole(0, self.most).text(value)

    def parse(self, text: str) -> int | None:
        """The number, or None."""
        return None if text == "all" else Whole(0, self.most).parse(text)


@dataclass(frozen=True, slots=True)
class Listed(Kind):
    """At least one value of a type, with commas between them."""

    kind: Kind

    @property
    def told(self) -> str:
        """What a value is."""
        return f"values with commas between them, each {self.kind.told}"

    def _text(self, value: Sequence[Any]) -> str:
        return ",".join(map(self.kind.text, value))

    def _parse(self, text: str) -> tuple[Any, ...] | None:
        return tuple(map(self.kind.parse, text.split(","))) if text else None


@dataclass(frozen=True, slots=True)
class Layout(Listed):
    """What each dimension of an unpacked tensor is: `docs/plans.md`, `dims`."""

    kind: Kind = Word(("0", "l", "r", *(f"c{k}" for k in range(8))))

    @property
    def told(self) -> str:
        """What a value is."""
        return "at most 12 of c0..c7, l (each at most once, one at least), 0 and r"

    def _parse(self, text: str) -> tuple[Any, ...] | None:
        codes = text.split(",")
        live = [code for code in codes if code not in "0r"]
        fits = live and len(set(live)) == len(live) and len(codes) <= MOST_DIMS
        return Listed._parse(self, text) if fits else None


@dataclass(frozen=True, slots=True)
class Lines(Kind):
    """Lines of prices: whole numbers under keys of a pattern, as pairs (key, numbers)."""

    keys: str

    what = "lines of whole numbers"

    def lines(self, value: Sequence[tuple[str, Sequence[int]]]) -> dict[str, str]:
        """The lines, by key."""
        return {key: _NUMBERS.text(numbers) for key, numbers in value}

    def found(self, lines: Mapping[str, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The pairs that lines of a plan say."""
        return tuple((k, _NUMBERS.parse(v)) for k, v in lines.items() if re.fullmatch(self.keys, k))


_NUMBERS = Listed(Whole(0, 1 << 62))


_KNOWN: dict[type, Mapping[str, Kind]] = {}


def kinds_of(plan: type) -> Mapping[str, Kind]:
    """The fields of a dataclass, and the types that their annotations name."""
    if plan not in _KNOWN:
        hints = get_type_hints(plan, include_extras=True).items()
        found = ((name, k) for name, hint in hints for k in getattr(hint, "__metadata__", ()))
        _KNOWN[plan] = {name: kind for name, kind in found if isinstance(kind, Kind)}
    return _KNOWN[plan]
