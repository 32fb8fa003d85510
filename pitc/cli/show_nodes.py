"""What `pitc explain` prints: a summary, one line for each node, the reasons in full.

A line fits the terminal: names lose their middle, never a letter at its edge. What is proven, which
engine and tiles run, and where a node comes from stand below it with `--facts`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pitc.cli.show import console, print_table, summary, waits
from pitc.ir.naming import LEAST, common_prefix, shortened, with_initials
from pitc.ir.refusal import ALL_READ, Code, Refusal
from pitc.ir.report import NodeRecord, Report
from pitc.ir.summary import alike, summary_text
from pitc.ir.words import GLOSSARY

NEGLIGIBLE = 1e-4  # of a model's work
MOST_NODES = 40  # that are shown where none are asked for
FEW_NODES = 3  # of those that are asked for: each with all that is known of it
LONGEST_OPERATOR, LEAST_REASON = 14, 20
FULL = 1 << 16  # characters: nothing is longer
NARROW = 100  # columns: operators are shortened
GAP = "  "
INDENT = " " * 4


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a report is shown.

    Args:
        asked: The nodes were asked for, so that none is left out.
        whole: Show all nodes, and names in full.
        facts: Show what is known of each node.
    """

    asked: bool = False
    whole: bool = False
    facts: bool = False


def explained(
    report: Report, records: Sequence[NodeRecord], shown: Shown, *, titled: bool = False
) -> None:
    """What `pitc explain` says: a summary, and a line for each node.

    Args:
        report: What is explained.
        records: Those of its nodes that are asked for.
        shown: What is shown of them.
        titled: There are several, so that it says for which kind of machine it is.
    """
    out = console()
    if titled:
        out.print(f"[bold]for {report.kind}[/bold]")
    out.print(Text(summary_text(report)))
    out.print()
    total = sum(r.flops or 0 for r in report.nodes)
    kept = list(records) if shown.whole or shown.asked else _chosen(records, total)
    _print_nodes(out, kept, shown)
    if len(kept) < len(records):
        work = sum(r.flops or 0 for r in records) - sum(r.flops or 0 for r in kept)
        left = f"{len(records) - len(kept)} of {len(records)} nodes"
        share = f", {work / total:.1%} of the work,".replace("%", " %") if work else ""
        out.print(f"{left}{share} are left out (--all shows them, --node PATTERN some)")
    _print_reasons(out, kept)
    _print_regions(out, report)
    out.print()
    out.print(escape(summary(report)))
    if report.host_copies:
        out.print(escape(waits(report)))
    for text in report.assumptions:
        out.print(f"assumption: {escape(text)}")
    for text in report.notes:
        out.print(f"note: {escape(text)}")
    out.print(f"words: {GLOSSARY}; codes: docs/errors.md")


def _chosen(records: Sequence[NodeRecord], total: int) -> list[NodeRecord]:
    """The nodes that most of the work is in, in their order; without what nobody asks about."""
    asked = [r for r in records if not _is_plumbing(r, total)]
    most = sorted(asked, key=lambda r: -1 if r.flops is None else -r.flops)
    unknown = [r for r in most if r.flops is None]
    kept = {id(r) for r in [*unknown, *(r for r in most if r.flops is not None)][:MOST_NODES]}
    return [r for r in asked if id(r) in kept]


def _is_plumbing(record: NodeRecord, total: int) -> bool:
    """True for what nobody asks about: no work to speak of, nothing known, nothing decided."""
    little = record.flops is not None and record.flops <= NEGLIGIBLE * total
    idle = record.lowering == "ordinary" and not record.facts
    return record.is_plumbing or (idle and little)


def _print_nodes(out: Console, records: Sequence[NodeRecord], shown: Shown) -> None:
    """A line for each node, and what is known of it below."""
    if not records:
        out.print("no such node")
        return
    prefix = "" if shown.whole else common_prefix(r.node for r in records)
    if prefix:
        out.print(f"names of nodes begin with {escape(prefix)}", soft_wrap=True)
    columns = _columns(records, out.width, prefix, shown)
    header = GAP.join(f"{name:<{width}}" for name, width in columns).rstrip()
    out.print(Text(header, "bold"), soft_wrap=True)
    below = shown.facts or (shown.asked and len(records) <= FEW_NODES)
    widths = [FULL] * len(columns) if shown.whole else [width for _, width in columns]
    names = _short_names([_name(r.node, prefix) for r in records], widths[0])
    for name, record in zip(names, records, strict=True):
        cells = [name, *_cells(record, prefix, widths[1:])]
        line = GAP.join(f"{x:<{width}}" for x, (_, width) in zip(cells, columns, strict=True))
        out.print(Text(line.rstrip(), _style(record)), soft_wrap=True)
        if below:
            for text in _known(record):
                out.print(Text(f"{INDENT}{text}"), soft_wrap=True)


def _columns(
    records: Sequence[NodeRecord], room: int, prefix: str, shown: Shown
) -> list[tuple[str, int]]:
    """Names and widths of the columns: node, operator, how it runs, why. Names get what the other
    columns leave, but for some room for reasons.
    """
    names = [len(_name(r.node, prefix)) for r in records]
    operators = [len(r.op_type) for r in records]
    ways = [len(r.lowering) for r in records]
    widest = [max(found, default=0) for found in (names, operators, ways)]
    name, operator, way = (max(n, k) for n, k in zip(widest, (4, 2, 5), strict=True))
    if not shown.whole:
        operator = min(operator, LONGEST_OPERATOR if room <= NARROW else FULL)
        rest = room - operator - way - 3 * len(GAP)
        name = min(name, max(rest - LEAST_REASON, LEAST_REASON))
    reason = room - name - operator - way - 3 * len(GAP)
    return [("node", name), ("op", operator), ("runs", way), ("why", max(reason, 3))]


def _short_names(names: Sequence[str], most: int) -> list[str]:
    """Names that fit; those that would look like another one keep the first letters of parts."""
    counts = Counter(shortened(name, most) for name in dict.fromkeys(names))
    short = (shortened(name, most) for name in names)
    return [
        with_initials(name, most) if counts[found] > 1 else found
        for name, found in zip(names, short, strict=True)
    ]


def _cells(record: NodeRecord, prefix: str, widths: Sequence[int]) -> list[str]:
    """What stands in the columns of a node behind its name, no longer than they are wide."""
    operator, way, why = widths
    return [
        shortened(record.op_type, operator),
        shortened("dense" if record.lowering == "ordinary" else record.lowering, way),
        _reason(record, prefix, why),
    ]


def _style(record: NodeRecord) -> str:
    if record.lowering != "ordinary":
        return "green"
    return "" if record.refusal is None or record.refusal.code is Code.NO_FACT else "yellow"


def _name(name: str, prefix: str) -> str:
    """A name without the prefix, on one line."""
    return " ".join(name.removeprefix(prefix).split())


def _reason(record: NodeRecord, prefix: str, most: int) -> str:
    """Why a node runs as it does, in few words."""
    refusal = record.refusal
    if refusal is None:
        inside = shortened(_name(record.inside, prefix), most - len("into "))
        return f"into {inside}" if inside else _cut(record.rule, most)
    value, read = _name(refusal.value, prefix), f"{refusal.code.id} read by ''"
    if refusal.reason == ALL_READ and value:
        return _cut(f"{read[:-1]}{shortened(value, max(most - len(read), LEAST))}'", most)
    at = f", at '{value}'" if value else ""
    return _cut(f"{refusal.code.id} {refusal.reason}{at}", most)


def _cut(text: str, most: int) -> str:
    """The beginning of a text, up to a word."""
    if len(text) <= most:
        return text
    head = text[: max(most - 2, 0)]
    return f"{head.rsplit(' ', 1)[0] if ' ' in head else head}.."[:most]


def _known(record: NodeRecord) -> list[str]:
    """All that is known of a node, a line each."""
    found = [f"axes: {' '.join(record.pit_axes)}"] if record.pit_axes else []
    found += record.facts
    refusal: Refusal | None = record.refusal
    word = "refused"
    while refusal is not None:
        at = f", at '{refusal.value}'" if refusal.value else ""
        found.append(f"{word}: {refusal.code.id} {refusal.reason}{at}")
        refusal, word = refusal.also, "nor"
    if record.inside:
        found.append(f"runs inside: {record.inside}")
    if record.runs != "-":
        first, *more = record.runs.split("\n")
        found += [f"engine: {first}", *more]
    found += [f"module: {record.module}"] if record.module else []
    found += [f"line: {record.line}"] if record.line else []
    return found


def _print_reasons(out: Console, records: Iterable[NodeRecord]) -> None:
    """Each reason that stands in the table, names in it left out, with what its code means."""
    refused = alike(records)
    if not refused:
        return
    out.print()
    ordered = sorted(refused.items(), key=lambda x: (x[0][0].id, x[0][1]))
    rows = [(c.id, str(len(nodes)), f"{why} ({c.hint})") for (c, why), (nodes, _) in ordered]
    print_table(out, ("code", "nodes", "reason"), rows, ("nodes",))


def _print_regions(out: Console, report: Report) -> None:
    """The packed regions, if there are any."""
    if not report.regions:
        return
    out.print()
    on_cuda = report.kind == "cuda"
    columns = ("region", "domain", "nodes", "flop/row", "bytes/row", *["copies to host"] * on_cuda)
    rows = []
    for g in report.regions:
        numbers = str(g.nodes), f"{g.flops_per_row:,}", f"{g.bytes_per_row:,}"
        rows.append((g.name, g.domain, *numbers, *[str(g.host_copies)] * on_cuda))
    print_table(out, columns, rows, ("nodes",))
