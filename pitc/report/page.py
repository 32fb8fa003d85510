"""The page: one HTML file that needs no other, without a network."""

import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pitc.host.machine import BUILDERS, cpu_level, cpu_name, installed
from pitc.ir.report import Report
from pitc.ir.words import WORDS, named_counts
from pitc.measure.bench import BASE, OURS, Timing
from pitc.measure.profile import changes
from pitc.report import text
from pitc.report.charts import density_chart, times_chart
from pitc.report.evidence import Evidence
from pitc.report.view import KINDS, View, view_of
from pitc.version import __version__

TEMPLATES = Path(__file__).parent / "templates"


def page(reports: Sequence[Report], evidence: Evidence | None = None) -> str:
    """The page of a model.

    Args:
        reports: What was compiled, for each kind of machine.
        evidence: What is known beside them.
    """
    known = evidence or Evidence()
    changed = changes(*known.profiles) if known.profiles else {}
    live = {c.node: c.density for c in known.contractions or ()}
    live |= {c.node: c.live_work for c in known.convolutions}
    live |= {a.node: a.live_pairs for a in known.attentions}
    views = [view_of(report, changed, live, several=len(reports) > 1) for report in reports]
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=reports[0].model or "model",
            views=views,
            verdict=verdict(views[0], known),
            timed=known.timed,
            tiles=tiles(views[0], known),
            race=known.race,
            ours=OURS,
            times=times_chart(*known.profiles, views[0]) if known.profiles else None,
            profiled=bool(changed),
            density=density_chart(known, reports[0].sparse),
            about=about(reports[0], known),
            kinds=KINDS,
            words=WORDS,
            word_ids={word: f"word-{word.replace(' ', '-')}" for word in WORDS},
            style=_own("style.css"),
            script=_own("script.js"),
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = ("words", "name", "share", "size", "time", "figures", "plural")
    made.filters |= {name: getattr(text, name) for name in filters}
    made.filters["counts"] = named_counts
    return made


def _own(name: str) -> Markup:
    """A file of ours, as it is."""
    return Markup((TEMPLATES / name).read_text("utf-8"))


def verdict(view: View, known: Evidence) -> str:
    """What a reader wants to know first, in one sentence."""
    base = _base(known)
    if base is not None:
        return {
            "too few rounds to say": "Too few rounds to say whether it is faster",
            "no difference shown": "No difference from ONNX Runtime was shown on these inputs",
        }.get(
            base.verdict,
            f"{base.speedup.median:.2f} times as fast as ONNX Runtime on these inputs",
        )
    packed, sparse = view.summary.packed, view.summary.sparse
    parts = []
    only, rows = ("Only ", "on live rows") if view.advice else ("", "on live rows only")
    for part, does in ((packed, rows), (sparse, "skipping zeros")):
        if part.nodes:
            share = (
                text.share(part.share) + " of the work" if view.worked else f"{part.nodes} nodes"
            )
            parts.append(f"{share} runs {does}" if view.worked else f"{share} run {does}")
    nothing = "No work to skip was found: the model runs unchanged"
    return f"{only}{', '.join(parts)}" if parts else nothing


def _base(known: Evidence) -> Timing | None:
    timings = known.race.timings if known.race else ()
    return next((row for row in timings if row.name == BASE), None)


def tiles(view: View, known: Evidence) -> list[dict[str, Any]]:
    """Figures below the first sentence: gain, time, memory, live rows, work, nodes."""
    found: list[dict[str, Any]] = []

    def tile(name: str, value: str, unit: str = "", note: str = "") -> None:
        found.append({"name": name, "value": value, "unit": unit, "note": note, "first": not found})

    base = _base(known)
    if base is not None and known.race:
        ours = known.race.timings[0]
        tile("Gain", f"{base.speedup.median:.2f}×", "", _interval(base))
        times = text.figures(base.ms.median), text.figures(ours.ms.median)
        tile("Time of a run", f"{times[0]} → {times[1]}", "ms", f"{base.name} → pitc, median")
    if {BASE, OURS} <= known.memory.keys():
        before, after = known.memory[BASE], known.memory[OURS]
        unit = text.size(max(before, after)).split()[1]
        shown = [text.size_in(n, unit) for n in (before, after)]
        tile("Peak memory", f"{shown[0]} → {shown[1]}", unit, "to load the model and run it once")
    if known.live is not None and known.live[1]:
        part = text.share(known.live[0] / known.live[1])
        tile("Live tokens", part, "", f"{known.live[0]:,} of {known.live[1]:,}")
    done = view.summary.packed.nodes + view.summary.sparse.nodes
    nodes = f"{done:,} of {text.plural(len(view.rows), 'node')}"
    if view.worked:
        share = text.share(view.summary.packed.share + view.summary.sparse.share)
        work = f"of {text.flops(view.summary.all.flops)}FLOP, {nodes}"
        tile("Work packed or sparse", share, "", work)
    else:
        tile("Packed or sparse", nodes)
    if base is None:
        kernels = text.plural(len(view.report.kernels), "kernel")
        tile("Packed regions", f"{len(view.report.regions)}", "", kernels)
    return found


def _interval(row: Timing) -> str:
    """What carries the claim, or that nothing does."""
    if row.interval is None:
        return f"{text.plural(len(row.rounds_ms), 'round')}: too few for a claim"
    low, high = row.interval
    return f"95 % interval {low:.2f} – {high:.2f}×"


def about(report: Report, known: Evidence) -> list[tuple[str, str]]:
    """How the report was made."""
    versions = {"pitc": __version__, "onnxruntime": installed("onnxruntime") or "none"}
    versions |= {name: version for name in BUILDERS if (version := installed(name))}
    rows = [
        ("model", report.model),
        ("command", known.command),
        ("target", report.target),
        ("padding", report.padding or "none"),
        ("precision", report.precision),
        ("CPU", f"{cpu_name()}, level {cpu_level() or 'none'}"),
        ("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    made = ", ".join(f"{name} {version}" for name, version in known.versions.items())
    rows.append(("compiled by", "" if known.versions.items() <= versions.items() else made))
    return [(name, value) for name, value in rows if value]
