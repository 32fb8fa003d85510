"""Training: gradients as ordinary ONNX graphs.

step = pitc.gradient("model.onnx", pitc.Loss("cross_entropy", "logits"))
compiled = pitc.compile(step, padding="attention_mask")
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pitc.artifact.onnx_file import check_onnx_file, write_onnx_file
from pitc.errors import UsageError
from pitc.passes.grad.loss import Loss

if TYPE_CHECKING:
    import onnx_ir as ir

    from pitc.importer.memory import AnyModel

__all__ = ["Loss", "gradient", "train_step"]


def gradient(
    model: "AnyModel",
    loss: str | Loss,
    wrt: Sequence[str] | None = None,
    *,
    masks: Sequence[str] = (),
    keep: Sequence[str] = (),
    output: str | Path | None = None,
    force: bool = False,
) -> "ir.Model":
    """Make a model that computes a loss and its gradients, with standard operators of ONNX only.

    A weight becomes an input whose default are its numbers, so that a caller may give others.

    Args:
        model: As of `compile`. It is not changed.
        loss: A value of the model with one element, by its name; or a loss to add to it.
        wrt: Names of the inputs and weights of floats to differentiate by, or patterns
            (`encoder.*`) of those that the loss depends on by a derivative. None: all such weights,
            except single numbers. An input with a default is a weight.
        masks: Weights, by names or patterns, that are multiplied by a new input `mask.NAME`, bools
            of their shape: false for a pruned element, whose gradient is 0.
        keep: Names of other values that shall be outputs, too.
        output: Also write the model to this file (`.onnx`).
        force: Replace an existing file.

    Returns:
        The model. Its outputs are the loss, those of `keep`, and for each name in `wrt` an output
        `grad.NAME` of that value's shape and type. `compile` takes it, and
        `onnx_ir.to_proto(result)` is it as an `onnx.ModelProto`.

    Raises:
        UsageError: A name or type does not fit, or the output exists.
        ModelError: The model cannot be read, or a node between the loss and a name in `wrt` has no
            derivative; the message names it.
    """
    from pitc.ir.metadata import STATE
    from pitc.passes.grad.gradient import add_gradients
    from pitc.passes.grad.masks import mask_weights

    def add(imported: "ir.Model", name: str) -> None:
        imported.metadata_props.pop(STATE, None)  # its outputs go
        mask_weights(imported, masks)
        add_gradients(imported, name, wrt, keep)

    return _made(model, loss, output, force, add, wrt=wrt, masks=masks, keep=keep)


def _made(
    model: "AnyModel",
    loss: str | Loss,
    output: str | Path | None,
    force: bool,
    add: "Callable[[ir.Model, str], object]",
    **lists: Sequence[str] | None,
) -> "ir.Model":
    """A model with a loss, and what is added to it; written to a file, if one is named.

    Args:
        model: What the user gave.
        loss: Likewise.
        output: Likewise.
        force: Likewise.
        add: Adds to the imported model behind its loss.
        lists: Lists of names that the user gave, by their parameters.
    """
    import onnx_ir as ir

    from pitc.api import import_model
    from pitc.importer.memory import imported_from
    from pitc.passes.grad.loss import add_loss

    if not isinstance(cast(object, loss), str | Loss):
        text = f"loss is a {type(loss).__qualname__}, no name of a value and no pitc.Loss"
        raise UsageError(text, hint='loss="loss", or pitc.Loss("cross_entropy", "logits")')
    for name, given in lists.items():
        if isinstance(given, str):
            text = f"{name} is the text {given!r}, not a list of names"
            raise UsageError(text, hint=f"{name}=[{given!r}]")
    file = None if output is None else Path(output)
    if file is not None:
        check_onnx_file(file, force=force)
    with imported_from(model) as read:
        imported, _ = import_model(read)
        add(imported, add_loss(imported, loss) if isinstance(loss, Loss) else loss)
        if not isinstance(model, str | Path):  # what was read is gone behind this
            ir.external_data.load_to_model(imported)
        if file is not None:
            write_onnx_file(imported, file)
    return imported


def train_step(
    model: "AnyModel",
    loss: str | Loss,
    wrt: Sequence[str] | None = None,
    *,
    optimizer: str = "adamw",
    learning_rate: float = 1e-3,
    decay: float = 0.0,
    no_decay: Sequence[str] = (),
    clip: float | None = None,
    loss_scale: bool = False,
    masks: Sequence[str] = (),
    keep: Sequence[str] = (),
    output: str | Path | None = None,
    force: bool = False,
    **settings: float,
) -> "ir.Model":
    """Make a model that computes a whole training step: loss, gradients and new weights.

    Each trained weight W is an input, with its numbers as the default, and the output `next.W`;
    likewise what the optimizer keeps (`mean.W`, `square.W` of Adam, `momentum.W`; all 0 at first,
    and float32 at least, as is the arithmetic of the update) and the number of steps. `Trainer`
    runs such a model and hands these on.

    Args:
        model: As of `compile`. It is not changed.
        loss: As of `gradient`.
        wrt: As of `gradient`; weights only.
        optimizer: `sgd`, `momentum`, `adam` or `adamw`, as PyTorch's.
        learning_rate: The default of the input `learning_rate`.
        decay: The weight decay.
        no_decay: Names or patterns of weights without it.
        clip: The largest norm of all gradients together; larger ones are made smaller.
        loss_scale: Multiply the loss by the input `loss_scale` on the backward way; where a
            gradient is not finite then, the step is left out, and the output `skipped` is true.
        masks: As of `gradient`; of weights that are trained.
        keep: As of `gradient`.
        output: As of `gradient`.
        force: As of `gradient`.
        settings: Numbers of the optimizer: `momentum` (0.9), `beta1` (0.9), `beta2` (0.999),
            `epsilon` (1e-8).

    Returns:
        The model. Its outputs are the loss, those of `keep`, and what the next step needs.

    Raises:
        UsageError: A name, type or number does not fit, or the output exists.
        ModelError: As of `gradient`.
    """
    from pitc.passes.grad.step import Training
    from pitc.passes.grad.train import add_training

    training = Training(
        optimizer, learning_rate, decay, no_decay, clip, loss_scale, masks, settings
    )

    def add(imported: "ir.Model", name: str) -> None:
        add_training(imported, name, wrt, training, keep)

    lists = {"wrt": wrt, "no_decay": no_decay, "masks": masks, "keep": keep}
    return _made(model, loss, output, force, add, **lists)
