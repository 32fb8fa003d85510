"""A torch module, exported by torch's own exporter and compiled."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pitc.api import compile
from pitc.compiled import CompiledModel
from pitc.errors import MachineError, ModelError, UsageError, origin_of
from pitc.frontends.quiet import quiet
from pitc.frontends.rewrites import rewritten
from pitc.frontends.second_input import SecondInput

if TYPE_CHECKING:
    import onnx_ir as ir

_INSTALL = "pip install torch onnxscript; for checkpoints, transformers too"


def from_torch(
    module: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    padding: str | Iterable[str] | None = None,
    target: str = "auto",
    verbose: bool = False,
    **options: Any,
) -> CompiledModel:
    """Export a torch module with `torch.onnx.export(dynamo=True)` and compile it.

    A size that is not in `dynamic_shapes` is fixed to that of the example. Attention over windows
    (Longformer, LED) is exported as attention under masks, for all sizes. A graph that chooses by
    values (TopK, as experts do) is compared with the module on a second input.

    Args:
        module: A `torch.nn.Module` in evaluation mode. It is not changed.
        args: Example inputs by position.
        kwargs: Example inputs by name.
        dynamic_shapes: Which dimensions change, as `torch.export.export` takes it; for example
            `{"input_ids": {0: batch, 1: sequence}}` with `batch = torch.export.Dim("batch")`.
        padding: As of `compile`: which tokens do not exist.
        target: As of `compile`.
        verbose: Show the output, log and warnings of torch's export; else they go to the logger
            `pitc.frontends`.
        options: Other options of `compile`, such as `output`.

    Returns:
        The compiled model; its inputs have the names of the module's arguments.

    Raises:
        MachineError: torch or onnxscript is not installed.
        UsageError: The module is in training mode, or is not a module.
        ModelError: torch cannot export it, or not for inputs that choose otherwise.
        PitcError: See `compile`.
    """
    exported = export(module, args, kwargs, dynamic_shapes, verbose=verbose)
    return compile(exported, target, padding, **options)


def export(
    module: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    output_names: Iterable[str] | None = None,
    *,
    verbose: bool = False,
) -> "ir.Model":
    """The ONNX graph of a torch module; arguments and errors are those of `from_torch`."""
    torch = installed("torch")
    installed("onnxscript")  # the exporter asks for it late
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__qualname__}")
    if module.training:
        text = "the module is in training mode, where dropout and batch norms behave otherwise"
        raise UsageError(text, hint="call module.eval()")
    args = (args,) if isinstance(args, torch.Tensor) else args  # torch itself takes one by itself
    args, kwargs = _apart((tuple(args), dict(kwargs or {})), torch.Tensor, set())
    try:
        with quiet(verbose=verbose):
            program = torch.onnx.export(
                rewritten(module),
                args,
                kwargs=kwargs,
                dynamic_shapes=dynamic_shapes,
                output_names=None if output_names is None else list(output_names),
                dynamo=True,
                verbose=verbose,
            )
    except Exception as error:  # of many classes, most with pages of text
        text = f"torch cannot export {type(module).__name__}: {origin_of(error)}"
        raise ModelError(text) from error
    with quiet(verbose=verbose):
        SecondInput(torch, module, program).check(tuple(args), kwargs or {})
    graph = cast("ir.Model", program.model)
    graph.graph.name = type(module).__name__  # torch calls every graph main_graph
    return graph


def _apart(value: Any, tensor: type, seen: set[int]) -> Any:
    """Example inputs in which no tensor stands twice: torch's exporter makes one input of those.

    The graph would then read one of two arguments in the place of both.
    """
    if isinstance(value, tensor):
        again = id(value) in seen
        seen.add(id(value))
        return cast("Any", value).clone() if again else value
    if type(value) in (tuple, list):
        return type(value)(_apart(v, tensor, seen) for v in value)
    if type(value) is dict:
        return {name: _apart(v, tensor, seen) for name, v in value.items()}
    return value


def installed(package: str) -> Any:
    """A package that pitc itself can do without.

    Raises:
        MachineError: It is not installed.
    """
    try:
        return import_module(package)
    except ImportError as missing:
        raise MachineError(
            f"{missing.name or package} is not installed", hint=_INSTALL
        ) from missing
