"""Names for people: exporters write paths that are longer than a table is wide."""

from collections.abc import Iterable
from itertools import takewhile

LONGEST = 48  # characters of a name in a table
_GAP = ".."


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name with its middle left out: whole parts of a path where enough of them fit.

    >>> shortened("/model/encoder/layer.0/attention/self/query/MatMul", 32)
    '/model/../self/query/MatMul'
    >>> shortened("a_name_without_any_parts", 12)
    'a_nam..parts'
    """
    if len(name) <= longest:
        return name
    head, *parts = name.split("/")
    tail = parts.pop() if parts else ""
    room = longest - len(f"{head}/{_GAP}/{tail}")
    if not parts or room < 0:
        half = (longest - len(_GAP)) // 2
        return f"{name[:half]}{_GAP}{name[half + len(_GAP) - longest :]}"
    before, after = [head], [tail]
    while parts:  # from both ends inwards, the end first: it says what the node does
        last = len(after) <= len(before)
        part = parts.pop() if last else parts.pop(0)
        room -= 1 + len(part)
        if room < 0:
            break
        after.insert(0, part) if last else before.append(part)
    return "/".join([*before, _GAP, *after])


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
