"""A formula of pairs as text: which keys k a query q sees.

not (k - q - 1 >= 0 or not doc[q] == doc[k])   ->   q >= k and doc[q] == doc[k]
"""

from pitc.ir.index import Digit, Poly
from pitc.passes.regions.domain import Domain
from pitc.passes.regions.sight import Compared, Condition, Dead, Formula, Numbers, Positions

PLACES = {"keys": "k", "queries": "q", "pairs": "q, k"}
MOST = 160  # characters


def seen_text(hidden: tuple[Condition, ...]) -> str:
    """Which keys a query sees, by what hides a pair.

    Args:
        hidden: A pair is hidden where one of them holds.
    """
    text = _text(Formula("or", hidden), negated=True)
    return text if len(text) <= MOST else f"{text[: MOST - 2].rstrip()} .."


def _text(condition: Condition, negated: bool, inside: str = "") -> str:
    match condition:
        case Formula("not", (part,)):
            return _text(part, not negated, inside)
        case Formula(op, parts):
            joint = {"and": "or", "or": "and"}[op] if negated else op
            texts = dict.fromkeys(_text(part, negated, joint) for part in parts)
            text = f" {joint} ".join(texts)
            return f"({text})" if inside not in ("", joint) and len(texts) > 1 else text
        case Positions(line):
            return _line(line, negated, {0: "q", 1: "k"})
        case Compared(order, query, key):
            ordered = ("<=", ">") if order.equal else ("<", ">=")
            signs = ("==", "!=") if order.less is None else ordered
            return f"{_number(query, 'q')} {signs[negated]} {_number(key, 'k')}"
        case Dead(kind, domain, blocks):
            if blocks is None:
                return _dead(domain, PLACES[kind], negated)
            sizes = {"q": blocks.queries, "k": blocks.keys}
            place = ", ".join(p if n == 1 else f"{p}//{n}" for p, n in sizes.items())
            return _dead(blocks.domain, place, negated)


def _number(numbers: Numbers, place: str) -> str:
    """A sum: `2*x[k] - y[k] + 1`."""
    parts = [(n, f"{test.src}[{place}]") for test, n in numbers.terms]
    parts += [(numbers.constant, "")] if numbers.constant else []
    texts = [
        ("+" if n > 0 else "-", (f"{abs(n)}*{name}" if abs(n) != 1 else name) if name else abs(n))
        for n, name in parts
    ]
    return " ".join(f"{sign} {text}" for sign, text in texts).removeprefix("+ ")


def _line(line: Poly, negated: bool, places: dict[int, str]) -> str:
    """That a polynomial is at least 0: what is added on the one side, the rest on the other.

    q - k - 3 >= 0   ->   q >= k + 3
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for monomial, factor in (-line - 1 if negated else line).terms.items():
        names = [places.get(a.dim, str(a)) if isinstance(a, Digit) else a for a in monomial]
        numbers = [] if abs(factor) == 1 and names else [str(abs(factor))]
        sides[factor < 0].append("*".join([*numbers, *names]))
    left, right = (" + ".join(side) or "0" for side in sides)
    return f"{left} >= {right}"


def _dead(domain: Domain, place: str, negated: bool) -> str:
    texts, sides = list[str](), place.split(", ")
    places = {domain.rank - len(sides) + k: side for k, side in enumerate(sides)}
    for test in sorted(domain.dead, key=str):
        if test.pred == "nz" and test.src and not (test.somes or test.alls):
            texts.append(f"{test.src}[{place}] {'!=' if test.yes != negated else '=='} 0")
        elif test.pred == "pos":
            texts.append(_line(test.idx[0], negated, places))
        else:
            texts.append(f"not ({test})" if negated else str(test))
    joint = " or " if negated else " and "
    return texts[0] if len(texts) == 1 else f"({joint.join(texts)})"
