"""Types of a plan's fields: each writes and reads its values, and refuses all others.

Whole(1, 64)    8 -> "8", "8" -> 8    "65", "08", "-1": refused
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints
from urllib.parse import quote, unquote

LONGEST_NAME = 1000  # bytes of a node's or a value's name


class Kind:
    """Type of a field."""

    __slots__ = ()

    @property
    def told(self) -> str:
        """What a value is, for people."""
        raise NotImplementedError

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


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """True or False, as 1 or 0."""

    @property
    def told(self) -> str:
        """What a value is."""
        return "0 or 1"

    def _text(self, value: bool) -> str:
        return str(int(value))

    def _parse(self, text: str) -> bool | None:
        return {"0": False, "1": True}.get(text)


@dataclass(frozen=True, slots=True)
class Word(Kind):
    """One of some words; of none: any, of letters, digits and `_.+/-`."""

    choices: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What a value is."""
        return "one of " + ", ".join(self.choices) if self.choices else "a word"

    def _parse(self, text: str) -> str | None:
        known = text in self.choices if self.choices else re.fullmatch(r"[A-Za-z0-9_.+/-]+", text)
        return text if known else None


@dataclass(frozen=True, slots=True)
class Real(Kind):
    """A finite float in C hexadecimal form, `0x1.8p-3`: exact."""

    @property
    def told(self) -> str:
        """What a value is."""
        return "a finite float in hexadecimal form"

    def _text(self, value: float) -> str:
        return float(value).hex()

    def _parse(self, text: str) -> float | None:
        whole = re.fullmatch(r"-?0x[0-9a-f.]+p[+-]?[0-9]+", text)
        return float.fromhex(text) if whole else None


@dataclass(frozen=True, slots=True)
class Name(Kind):
    """Name of a node or a value: other bytes than letters, digits and `-._~/` are `%XX`."""

    @property
    def told(self) -> str:
        """What a value is."""
        return "a name"

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
class Lines(Kind):
    """Lines of prices: whole numbers under keys of a pattern, as pairs (key, numbers)."""

    keys: str

    @property
    def told(self) -> str:
        """What a value is."""
        return "lines of whole numbers"

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
