"""`pitc gradient`."""

from pathlib import Path
from typing import TYPE_CHECKING

from pitc.cli.models import settings_of
from pitc.cli.output import print_json, warnings_as_lines
from pitc.cli.show import console, size
from pitc.cli.steps import Steps
from pitc.training import Loss, gradient

if TYPE_CHECKING:
    from pitc.cli.options import Gradient

PREFIX = "grad."


def make_gradient(options: "Gradient") -> None:
    """`pitc gradient`."""
    file = options.output or Path(f"{options.model.stem}.grad.onnx")
    kind, colon, scores = options.loss.partition(":")
    loss: str | Loss = options.loss
    if colon and kind in Loss.kinds():
        loss = Loss(kind, scores, options.labels, options.ignore_index, mask=options.mask)
    with warnings_as_lines(), Steps(("gradient",), quiet=settings_of(options).quiet) as steps:
        steps("gradient")
        made = gradient(
            options.model,
            loss,
            options.wrt,
            masks=options.masks or (),
            keep=options.keep or (),
            output=file,
            force=options.force,
        )
    names = [value.name or "" for value in made.graph.outputs]
    gradients = {name.removeprefix(PREFIX): name for name in names if name.startswith(PREFIX)}
    if options.json:
        print_json({"model": str(file), "loss": names[0], "gradients": gradients})
        return
    out = console()
    text = f"{file}  {size(file.stat().st_size)}: {names[0]}, and {len(gradients)} gradients"
    out.print(text, markup=False, soft_wrap=True)
    out.print(f"next: pitc compile {file}", markup=False, soft_wrap=True)
