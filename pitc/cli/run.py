"""`pitc run`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pitc.artifact.folder import check_file, new_file
from pitc.cli import show
from pitc.cli.models import open_model, read_inputs
from pitc.cli.output import print_json, warnings_as_lines
from pitc.errors import UsageError, one_line
from pitc.session import arrays


def run_model(
    model: Path,
    inputs: Sequence[str],
    shapes: Sequence[str],
    seed: int,
    padding: str | None,
    save: Path | None,
    *,
    quiet: bool | None,
    json: bool,
) -> None:
    """`pitc run`."""
    from pitc.check.feeds import cases
    from pitc.check.inputs import dims_of, specs_of
    from pitc.check.tokens import masks_of

    if save is not None:
        check_file(save, (".npz",), "outputs file")
    feeds = read_inputs(inputs)
    compiled = open_model(model, padding, quiet=quiet)
    specs = specs_of(compiled, feeds)
    missing = [s for s in specs if s.name not in feeds]
    if missing:
        given = dims_of(specs, feeds, shapes)
        masks = masks_of(compiled)
        feeds = next(cases(missing, given, masks, seed)).feeds | feeds
    elif shapes:
        raise UsageError("--shape has no effect when every input is given")
    with warnings_as_lines():
        found = arrays(compiled.run(feeds))
    if save is not None:
        with new_file(save) as scratch:
            np.savez(scratch, allow_pickle=False, **found)
    if json:
        listed = {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), **show.statistics(a)}
            for name, a in found.items()
        }
        print_json({"outputs": listed, "random_inputs": [s.name for s in missing]})
        return
    if missing:
        names = ", ".join(s.name for s in missing)
        print(one_line(f"random inputs (seed {seed}): {names}; --input gives real ones"))
    show.outputs(found)
