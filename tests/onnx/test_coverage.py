"""What of every export runs packed, and where its rows are dead: a sounder rule must not lose it
unnoticed, nor a bolder one gain it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx

from tests.lowered_exports import lowered_export

FOLDER = Path(__file__).parents[2] / "models/export"
FILES = sorted([*FOLDER.glob("fixtures/*.onnx"), *FOLDER.glob("fused/*.onnx")])


def lowered(file: Path, padding: str | None) -> str:
    """Counts of lowerings, and the domains of its regions, in a few lines."""
    report = lowered_export(file, padding).report
    counts = Counter(r.lowering for r in report.nodes)
    flag = f" --padding {padding}" if padding else ""
    lines = [f"{file.stem}{flag}: {', '.join(f'{k} {n}' for k, n in sorted(counts.items()))}"]
    lines += sorted(f"    {r.domain} ({r.nodes} nodes)" for r in report.regions)
    return "\n".join(lines)


def masks_of(file: Path) -> list[str]:
    return [i.name for i in onnx.load(file).graph.input if "mask" in i.name]


def test_every_export_packs_what_it_packed(golden: Callable[[str, str], None]) -> None:
    parts = []
    for file in FILES:
        masks = masks_of(file)
        own = next((m for m in masks if m.startswith("decoder")), masks[0] if masks else None)
        parts += [lowered(file, padding) for padding in dict.fromkeys((None, own))]
    golden("coverage.txt", "\n".join([*parts, ""]))
