"""Names and numbers as text. A name is never broken but behind `/`, `.`, `_` and their like."""

import re
from collections.abc import Sequence

from markupsafe import Markup

#: Letters in a row that a column has room for, and of a whole name.
TOKEN, NAME = 22, 64
#: Behind a sign and in front of something else, but not behind the first one, nor inside a number.
_BREAK = re.compile(r"(?<!\A.)(?<=[/._:,;=?!|>)\]}-])(?=[^\s/._:,;=?!|>)\]}-])(?!(?<=\d[.,])\d)")
_GAP = re.compile(r"(?<=.)…(?=.)")
_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def words(text: object, token: int = TOKEN) -> Markup:
    """Text in which a line may end at spaces and behind `/`, `.`, `_` and like signs, nowhere
    else.

    Longer runs of letters lose their middle; a name belongs into a title, too.
    """
    return Markup(" ").join(_joined(_parts(word, token)) for word in str(text).split())


def name(text: str, most: int = NAME, token: int = TOKEN) -> Markup:
    """The same of a name, which also loses parts in its middle when it is long as a whole.

    /model/encoder/layer.11/attention/MatMul, 30    ->    /model/…11/attention/MatMul
    """
    parts = _parts(" ".join(text.split()), token)
    head, tail = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    while sum(map(len, (*head, *tail))) > most and len(tail) > 1:
        if sum(map(len, head)) * 2 > sum(map(len, tail)) and head:
            head.pop()
        else:
            tail.pop(0)
    gone = len(head) + len(tail) < len(parts)
    return _joined([*head, *["…"] * gone, *tail])


def _parts(word: str, token: int) -> list[str]:
    return [middle_out(part, token) for part in _BREAK.split(word)]


def _joined(parts: Sequence[str]) -> Markup:
    """Parts with places to break between; an ellipsis inside of one is none."""
    return Markup("<wbr>").join(_GAP.sub("\N{WORD JOINER}…\N{WORD JOINER}", x) for x in parts)


def middle_out(text: str, most: int) -> str:
    """A text of at most so many letters.

    abcdefghij, 6    ->    abc…ij
    """
    if len(text) <= most:
        return text
    kept = most - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def share(part: float) -> str:
    """A share of 1 in percent; nothing that is there is shown as 0, nothing missing as 100.

    0.0004, 0.345, 0.9996    ->    <0.1 %, 35 %, 99.9 %
    """
    percent = 100 * part
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 0 < percent < 9.95:
        return f"{percent:.1f} %"
    return "99.9 %" if 99.5 <= percent < 100 and part != 1 else f"{percent:.0f} %"


def time(us: float | None) -> str:
    """A time of three figures with its unit; a dash for None."""
    if us is None:
        return "–"
    if us >= 1e6:
        return f"{figures(us / 1e6)} s"
    return f"{figures(us / 1e3)} ms" if us >= 1e3 else f"{figures(us)} µs"


def figures(number: float) -> str:
    """Three figures, never with an exponent.

    1234.5, 12.345, 0.012345    ->    1234, 12.3, 0.0123
    """
    if number >= 100 or not number:
        return f"{number:.0f}"
    digits = next(d for d in range(1, 12) if d == 11 or number >= 10 ** (2 - d))
    return f"{number:.{digits}f}"


def size(count: float) -> str:
    """Bytes, e.g. `86.7 MB`."""
    return next(
        (f"{figures(count / s)} {unit}" for s, unit in _SIZES if count >= s), f"{count:.0f} B"
    )


def size_in(count: float, unit: str) -> str:
    """Bytes in a unit of `size`, without it."""
    return figures(count / next((s for s, name in _SIZES if name == unit), 1))


def flops(count: float) -> str:
    """Operations, e.g. `1.21 G`."""
    steps = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    return next((f"{figures(count / s)} {unit}" for s, unit in steps if count >= s), f"{count:.0f}")


def plural(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {what}{'s' * (count != 1)}"
