"""Real exports, lowered once for all tests of a process that ask for the same."""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

from pitc.importer import load_model
from pitc.ir import target as targets
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.tile_prices import PRICES


def lowered_export(file: Path, padding: str | None) -> Lowered:
    """An export as the passes leave it; whoever asks may read it, and change nothing."""
    return _lowered(file, padding, targets.CPU)


@functools.cache
def _lowered(file: Path, padding: str | None, _: targets.Target) -> Lowered:
    """A test may have put another target in the place of the usual one, which is read there."""
    return run_passes(load_model(file), LowerOptions(padding=padding, prices=PRICES))


def masks_of(file: Path) -> tuple[str, ...]:
    """The inputs of an export that are masks."""
    return tuple(i.name for i in onnx.load(file).graph.input if "mask" in i.name)


def what_packs(files: Sequence[Path]) -> str:
    """Of some exports, with and without padding: counts of lowerings, and the regions' domains."""
    parts = []
    for file in files:
        masks = masks_of(file)
        own = next((m for m in masks if m.startswith("decoder")), masks[0] if masks else None)
        parts += [_packs(file, padding) for padding in dict.fromkeys((None, own))]
    return "\n".join([*parts, ""])


def _packs(file: Path, padding: str | None) -> str:
    report = lowered_export(file, padding).report
    counts = Counter(r.lowering for r in report.nodes)
    flag = f" --padding {padding}" if padding else ""
    lines = [f"{file.stem}{flag}: {', '.join(f'{k} {n}' for k, n in sorted(counts.items()))}"]
    lines += sorted(f"    {r.domain} ({r.nodes} nodes)" for r in report.regions)
    return "\n".join(lines)
