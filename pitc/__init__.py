"""pitc: an ahead-of-time compiler over ONNX graphs for dynamic sparsity.

    compiled = pitc.compile("model.onnx", padding="attention_mask")
    compiled.save("model.pitc")
    outputs = pitc.load("model.pitc").run({"input_ids": ids, "attention_mask": mask})

Nothing heavy is imported before it is used: `import pitc` costs a few milliseconds.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from pitc.version import __version__

if TYPE_CHECKING:
    from pitc.api import compile, explain
    from pitc.check.verification import Verification, verify
    from pitc.compiled import CompiledModel, get_ep_name, get_library_path, load, register
    from pitc.errors import (
        ArtifactError,
        MachineError,
        ModelError,
        PitcError,
        PitcWarning,
        SuggestionWarning,
        UsageError,
        VerificationError,
    )
    from pitc.frontends.pretrained import from_pretrained
    from pitc.frontends.pytorch import from_torch
    from pitc.frontends.training_graph import torch_training_graph
    from pitc.functions import grouped_matmul
    from pitc.ir.custom_ops import register_custom_ops
    from pitc.measure.benchmark import Benchmark, bench
    from pitc.trainer import Trainer
    from pitc.training import Loss, gradient, train_step

__all__ = [
    "ArtifactError",
    "Benchmark",
    "CompiledModel",
    "Loss",
    "MachineError",
    "ModelError",
    "PitcError",
    "PitcWarning",
    "SuggestionWarning",
    "Trainer",
    "UsageError",
    "Verification",
    "VerificationError",
    "__version__",
    "bench",
    "compile",
    "explain",
    "from_pretrained",
    "from_torch",
    "get_ep_name",
    "get_library_path",
    "gradient",
    "grouped_matmul",
    "load",
    "register",
    "register_custom_ops",
    "torch_training_graph",
    "train_step",
    "verify",
]

_ROOMS = {
    "Benchmark": "pitc.measure.benchmark",
    "Loss": "pitc.training",
    "Trainer": "pitc.trainer",
    "Verification": "pitc.check.verification",
    "bench": "pitc.measure.benchmark",
    "compile": "pitc.api",
    "explain": "pitc.api",
    "from_pretrained": "pitc.frontends.pretrained",
    "from_torch": "pitc.frontends.pytorch",
    "gradient": "pitc.training",
    "grouped_matmul": "pitc.functions",
    "register_custom_ops": "pitc.ir.custom_ops",
    "torch_training_graph": "pitc.frontends.training_graph",
    "train_step": "pitc.training",
    "verify": "pitc.check.verification",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pitc' has no attribute {name!r}")
    room = "pitc.errors" if name.endswith(("Error", "Warning")) else _ROOMS.get(name)
    room = room or "pitc.compiled"
    try:
        return getattr(import_module(room), name)
    except ModuleNotFoundError as error:
        if not room.startswith(error.name or "?"):
            raise
        return _compilers(name)


def _compilers(name: str) -> Callable[..., NoReturn]:
    """What stands for a function of the compiler where `pitc-runtime` alone is installed."""

    def lacking(*_arguments: Any, **_options: Any) -> NoReturn:
        from pitc.errors import MachineError

        text = f"pitc.{name} needs the compiler, but only pitc-runtime is installed"
        raise MachineError(text, hint="install the wheel of pitc, too")

    return lacking


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
