"""Real exports, lowered once for all tests of a process that ask for the same."""

import functools
from pathlib import Path

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
