"""The graph of a torch module's loss and gradients, as torch itself differentiates it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pitc.artifact.onnx_file import check_onnx_file, write_onnx_file
from pitc.errors import ModelError, UsageError, origin_of
from pitc.frontends.pytorch import installed
from pitc.frontends.quiet import quiet

if TYPE_CHECKING:
    import onnx_ir as ir

PREFIX = "grad."
#: Operators of transformers' models whose backward torch's exporter has no ONNX for as they are.
_DECOMPOSED = (
    "embedding_dense_backward",
    "native_layer_norm_backward",
    "nll_loss_forward",
    "nll_loss_backward",
)


def torch_training_graph(
    module: Any,
    inputs: Mapping[str, Any],
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] = lambda output: output,
    opset: int = 20,
    output: str | Path | None = None,
    force: bool = False,
    verbose: bool = False,
) -> "ir.Model":
    """Export a torch module together with its gradients.

    `gradient` makes cleaner graphs, and needs no torch; this is for modules whose loss or backward
    way is torch's own. It takes a minute or more.

    Args:
        module: A `torch.nn.Module`. It is not changed.
        inputs: Example inputs by name.
        dynamic_shapes: For each input which dimensions change, as `torch.export.export` takes it.
        loss: The loss of the module's output: a tensor of one element.
        opset: The operator set of the graph.
        output: Also write it to this file (`.onnx`).
        force: Replace an existing file.
        verbose: As of `from_torch`.

    Returns:
        A model as `gradient` makes it: its outputs are `loss` and `grad.NAME` for each parameter
        that is trained. The parameters are inputs, with their numbers as defaults.

    Raises:
        MachineError: torch or onnxscript is not installed.
        UsageError: It is no module, nothing in it is trained, or the output exists.
        ModelError: torch cannot export it.
    """
    torch = installed("torch")
    installed("onnxscript")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__qualname__}")
    file = None if output is None else Path(output)
    if file is not None:
        check_onnx_file(file, force=force)
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise UsageError("no parameter of the module requires a gradient")
    try:
        with quiet(verbose=verbose):
            model = _exported(torch, module, trained, inputs, dynamic_shapes or {}, loss, opset)
    except Exception as error:  # of many classes, most with pages of text
        text = f"torch cannot export {type(module).__name__} with its gradients"
        raise ModelError(f"{text}: {origin_of(error)}") from error
    model.graph.name = type(module).__name__
    _give_defaults(model, dict(trained))
    if file is not None:
        write_onnx_file(model, file)
    return model


def _exported(
    torch: Any,
    module: Any,
    trained: list[tuple[str, Any]],
    inputs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any],
    loss: Callable[[Any], Any],
    opset: int,
) -> "ir.Model":
    decompositions, attention = installed("torch._decomp"), installed("torch.nn.attention")
    make_fx = installed("torch.fx.experimental.proxy_tensor").make_fx
    table = decompositions.core_aten_decompositions()
    decomposed = [getattr(torch.ops.aten, name) for name in _DECOMPOSED]
    table.update(decompositions.get_decompositions(decomposed))
    names, places = [name for name, _ in trained], list(inputs)

    def step(parameters: Any, *given: Any) -> Any:
        fed = dict(zip(places, given, strict=True))
        bound = dict(zip(names, parameters, strict=True))
        total = loss(torch.func.functional_call(module, bound, (), fed))
        found = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        return (total, *found)

    class Step(torch.nn.Module):  # type: ignore[misc]
        """Traced inside of `forward`, so that torch.export gives dimensions their symbols."""

        def forward(self, parameters: Any, given: Any) -> Any:
            leaves = tuple(p.detach().requires_grad_(True) for p in parameters)
            return make_fx(step, decomposition_table=table)(leaves, *given)(parameters, *given)

    values = tuple(p.detach().clone() for _, p in trained)
    shapes = (tuple(None for _ in values), tuple(dynamic_shapes.get(name) for name in places))
    with attention.sdpa_kernel(attention.SDPBackend.MATH):  # other kernels' backward has no ONNX
        program = torch.export.export(
            Step(), (values, tuple(inputs.values())), dynamic_shapes=shapes
        )
        exported = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=[*names, *places],
            output_names=["loss", *(f"{PREFIX}{name}" for name in names)],
        )
    return cast("ir.Model", exported.model)


def _give_defaults(model: "ir.Model", parameters: Mapping[str, Any]) -> None:
    """Make the module's parameters the defaults of the inputs that stand for them."""
    import onnx_ir as ir

    for value in model.graph.inputs:
        parameter = parameters.get(value.name or "")
        if parameter is not None:
            value.const_value = ir.tensor(parameter.detach().numpy(), name=value.name)
            model.graph.register_initializer(value)
