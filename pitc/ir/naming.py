"""Names for people: exporters write paths that are longer than a table is wide."""

from collections.abc import Container, Iterable, Sequence
from itertools import takewhile

LONGEST = 48  # characters of a name in a table
LEAST = 6  # with fewer there is no room for a gap
_GAP = ".."


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name with its middle left out: whole parts of a path where enough of them fit, the last one
    and numbered ones first.

    >>> shortened("/model/encoder/layer.0/attention/self/query/MatMul", 32)
    '/../layer.0/../self/query/MatMul'
    >>> shortened("a_name_without_any_parts", 12)
    'a_nam..parts'
    """
    if len(name) <= longest:
        return name
    if longest < LEAST:
        return name[: max(longest, 0)]
    parts = name.split("/")
    kept = {len(parts) - 1}
    if len(parts) == 1 or len(_joined(parts, kept)) > longest:
        return _middle_left_out(name, longest)
    rest = range(len(parts) - 2, -1, -1)  # the end says what the node does
    numbered = [k for k in reversed(rest) if any(c.isdigit() for c in parts[k])]
    for k in (*numbered, *rest):
        if len(_joined(parts, kept | {k})) <= longest:
            kept.add(k)
    return _joined(parts, kept)


def with_initials(name: str, longest: int) -> str:
    """A path in which parts have their first letter alone, from the front on and until it fits; the
    last part and numbered ones are kept.

    >>> with_initials("encoder/layer.0/attention/output/dense/MatMul", 32)
    'e/layer.0/a/output/dense/MatMul'
    """
    parts = name.split("/")
    for k, part in enumerate(parts[:-1]):
        if len("/".join(parts)) <= longest:
            break
        if not any(c.isdigit() for c in part):
            parts[k] = part[:1]
    return shortened("/".join(parts), longest)


def _middle_left_out(name: str, longest: int) -> str:
    half = (longest - len(_GAP)) // 2
    return f"{name[:half]}{_GAP}{name[half + len(_GAP) - longest :]}"


def _joined(parts: Sequence[str], kept: Container[int]) -> str:
    """Some parts of a path, with a gap for those left out in a row."""
    shown: list[str] = []
    for k, part in enumerate(parts):
        if k in kept:
            shown.append(part)
        elif shown[-1:] != [_GAP]:
            shown.append(_GAP)
    return "/".join(shown)


def common_prefix(names: Iterable[str]) -> str:
    """The leading parts of paths that several names share, with the last `/`; else empty. Names
    that are no paths do not count.

    >>> common_prefix(["/model/encoder/Add", "/model/encoder/MatMul", "output"])
    '/model/encoder/'
    """
    known = [name.split("/")[:-1] for name in names if "/" in name]
    if len(known) < 2:
        return ""
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*known, strict=False))
    return "".join(f"{parts[0]}/" for parts in same)
