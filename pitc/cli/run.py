"""`pitc run`."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pitc.artifact.folder import check_file, new_file
from pitc.artifact.manifest import FALLBACK
from pitc.cli import show
from pitc.cli.models import open_model, read_inputs
from pitc.cli.output import print_json, warnings_as_lines
from pitc.errors import UsageError, one_line
from pitc.session import arrays

if TYPE_CHECKING:
    from pitc.cli.options import Run


def run_model(options: "Run") -> None:
    """`pitc run`."""
    from pitc.check.feeds import cases
    from pitc.check.inputs import filled, specs_of
    from pitc.check.tokens import LiveTokens

    shapes, save = options.shape or [], options.save
    if save is not None:
        check_file(save, (".npz",), "outputs file")
    feeds = read_inputs(options.input)
    compiled = open_model(options).compiled
    specs = specs_of(compiled, feeds)
    missing = [s for s in specs if s.name not in feeds]
    if missing:
        masks = LiveTokens(compiled.path / FALLBACK, compiled.manifest.options.padding).masks
        make = partial(cases, padding=masks, seed=options.seed)
        feeds = next(filled(specs, feeds, shapes, make)).feeds
    elif shapes:
        raise UsageError("--shape has no effect when every input is given")
    with warnings_as_lines():
        found = arrays(compiled.run(feeds))
    if save is not None:
        with new_file(save) as scratch:
            np.savez(scratch, allow_pickle=False, **found)
    if options.json:
        listed = {
            name: {"dtype": str(a.dtype), "shape": list(a.shape), **show.statistics(a)}
            for name, a in found.items()
        }
        print_json({"outputs": listed, "random_inputs": [s.name for s in missing]})
        return
    if missing:
        names = ", ".join(s.name for s in missing)
        print(one_line(f"random inputs (seed {options.seed}): {names}; --input gives real ones"))
    show.outputs(found)
