"""The graph of a torch module's loss and gradients, as torch itself differentiates it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pitc.artifact.onnx_file import check_onnx_file, write_onnx_file
from pitc.errors import ModelError, UsageError, origin_of
from pitc.frontends.pytorch import installed
from pitc.frontends.quiet import quiet
from pitc.ir.metadata import note_gradients

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

    This is for modules whose loss or gradients are defined by torch code. `gradient` is faster and
    more of its graph runs packed; this takes 10 seconds or more for each layer of a transformer.

    Args:
        module: A `torch.nn.Module` in evaluation mode. It is not changed.
        inputs: Example tensors by the names of the module's arguments.
        dynamic_shapes: For each input which dimensions change, as `torch.export.export` takes it.
            Without it, all sizes are those of the examples.
        loss: Computes the loss from the module's output: a tensor of one element.
        opset: The operator set of the graph.
        output: Also write it to this file (`.onnx`).
        force: Replace an existing file.
        verbose: As of `from_torch`.

    Returns:
        A model as `gradient` makes it: its outputs are `loss` and `grad.NAME` for each parameter
        that requires a gradient; zeros, if the loss does not depend on it. These parameters are
        inputs, with their numbers as defaults.

    Raises:
        MachineError: torch or onnxscript is not installed.
        UsageError: An argument does not fit (the module is in training mode, an input is no tensor,
            the loss has several elements, no parameter has a gradient), or the output exists.
        ModelError: The module fails on the inputs, or torch cannot export it.
    """
    torch = installed("torch")
    installed("onnxscript")
    _check_module(torch, module)
    given, shapes = _checked_inputs(torch, inputs, dynamic_shapes)
    file = None if output is None else Path(output)
    if file is not None:
        check_onnx_file(file, force=force)
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trained:
        hint = "module.requires_grad_() marks all of them"
        raise UsageError("no parameter of the module requires a gradient", hint=hint)
    with torch.enable_grad():
        _check_loss(torch, module, given, loss)
        try:
            with quiet(verbose=verbose):
                model = _exported(torch, module, trained, given, shapes, loss, opset)
        except Exception as error:  # of many classes, most with pages of text
            text = f"torch cannot export {type(module).__name__} with its gradients"
            raise ModelError(f"{text}: {origin_of(error)}") from error
    model.graph.name = type(module).__name__
    _give_defaults(model, dict(trained))
    if file is not None:
        write_onnx_file(model, file)
    return model


def _check_module(torch: Any, module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__qualname__}")
    if module.training:
        text = "the module is in training mode, where dropout and batch norms behave otherwise"
        raise UsageError(text, hint="call module.eval()")


def _checked_inputs(
    torch: Any, inputs: Any, dynamic_shapes: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The example inputs and their dimensions that change, as far as they can be checked."""
    if not isinstance(inputs, Mapping):
        text = f"inputs is a {type(inputs).__qualname__}, not a mapping of names to tensors"
        raise UsageError(text, hint='inputs={"input_ids": ids}')
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            text = f"the input '{name}' is a {type(value).__qualname__}, not a torch.Tensor"
            raise UsageError(text, hint="wrap the module in one that takes tensors only")
    shapes = {} if dynamic_shapes is None else dynamic_shapes
    if not isinstance(shapes, Mapping):
        text = f"dynamic_shapes is a {type(shapes).__qualname__}, not a mapping of inputs' names"
        raise UsageError(text, hint='dynamic_shapes={"input_ids": {0: torch.export.Dim("batch")}}')
    for name, sizes in shapes.items():
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            text = f"dynamic_shapes names '{name}', which is no input"
            raise UsageError(text, hint=f"the inputs are: {known}")
        rank = inputs[name].ndim
        if wrong := [d for d in sizes or () if isinstance(sizes, Mapping) and d not in range(rank)]:
            text = f"dynamic_shapes names dimension {wrong[0]} of '{name}', which has {rank}"
            raise UsageError(text)
    # torch's exporter makes one input of a tensor that stands twice (labels that are the ids)
    return {name: value.detach().clone() for name, value in inputs.items()}, dict(shapes)


def _check_loss(
    torch: Any, module: Any, inputs: Mapping[str, Any], loss: Callable[[Any], Any]
) -> None:
    """Compute the loss once: torch's exporter would say what is wrong with it after a minute."""
    name = type(module).__name__
    try:
        output = module(**inputs)
    except Exception as error:  # whatever the module raises
        raise ModelError(f"{name} fails on these inputs: {origin_of(error)}") from error
    try:
        total = loss(output)
    except Exception as error:  # whatever the function raises
        text = f"the loss of {type(output).__qualname__} fails: {origin_of(error)}"
        raise UsageError(text) from error
    hint = "loss=lambda output: output.loss, for example"
    if not isinstance(total, torch.Tensor):
        text = f"the loss is a {type(total).__qualname__}, not a torch.Tensor"
        raise UsageError(text, hint=hint)
    if total.numel() != 1 or not total.is_floating_point():
        text = f"the loss is {total.dtype} of the shape {list(total.shape)}, not one float"
        raise UsageError(text, hint="take its mean() or sum()")
    if not total.requires_grad:
        raise UsageError(f"the loss depends on no parameter of {name} that requires a gradient")


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
            with torch._C.DisableTorchFunction():  # export would note steps of this trace, too
                traced = make_fx(step, decomposition_table=table)(leaves, *given)
            return traced(parameters, *given)

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
    from onnx_ir.tensor_adapters import TorchTensor

    for value in model.graph.inputs:
        parameter = parameters.get(value.name or "")
        if parameter is not None:
            numbers = TorchTensor(parameter.detach().cpu().clone()).numpy()
            value.const_value = ir.tensor(numbers, name=value.name)
            model.graph.register_initializer(value)
    note_gradients(model, [f"{PREFIX}{name}" for name in parameters])
