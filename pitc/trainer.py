"""Runs the steps of a model that trains: it holds the weights and the optimizer's state."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from pitc.artifact.folder import check_file, new_file
from pitc.compiled import CompiledModel
from pitc.errors import UsageError

STATE = "pitc.state"  # key of a model's metadata: outputs, and the inputs they are next
Arrays = dict[str, npt.NDArray[Any]]


class Trainer:
    """Weights and state of a training, which change with each step.

    What one step gives is bound as the input of the next one: no weight is copied.

    Args:
        compiled: What `compile` makes of the result of `train_step`; or an
            `onnxruntime.InferenceSession` of it.
        threads: As of `CompiledModel.session`.

    Raises:
        UsageError: It is no training step.
    """

    def __init__(self, compiled: CompiledModel | Any, *, threads: int | None = None) -> None:
        self._session: Any = compiled
        if isinstance(compiled, CompiledModel):
            self._session = compiled.session(threads=threads)
        kept = self._session.get_modelmeta().custom_metadata_map.get(STATE)
        if kept is None:
            raise UsageError("the model is no training step", hint="pitc.train_step makes one")
        self._next: dict[str, str] = json.loads(kept)
        self._outputs = [x.name for x in self._session.get_outputs()]
        self._needed = [x.name for x in self._session.get_inputs()]
        self._state: dict[str, Any] = {}
        for x in self._session.get_inputs():  # weights begin with the model's own numbers
            if x.name in self._next.values():
                self._state[x.name] = self._value(np.zeros(x.shape, _TYPES[x.type]))

    @staticmethod
    def _value(array: npt.NDArray[Any]) -> Any:
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))

    def step(self, feeds: Mapping[str, npt.ArrayLike]) -> Arrays:
        """Train by one batch.

        Args:
            feeds: The model's inputs by name, and numbers that shall differ from their defaults,
                such as `learning_rate`.

        Returns:
            The loss and the other outputs, by name.

        Raises:
            UsageError: An input is missing, or is a weight or state.
        """
        if held := [name for name in feeds if name in self._next.values()]:
            raise UsageError(f"'{held[0]}' is kept by the trainer", hint="change it with `put`")
        missing = [n for n in self._needed if n not in feeds and n not in self._state]
        if missing:
            raise UsageError(f"the input '{missing[0]}' is missing")
        binding = self._session.io_binding()
        for name, value in self._state.items():
            binding.bind_ortvalue_input(name, value)
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, self._value(np.asarray(array)))
        for name in self._outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        self._state |= {before: found.pop(after) for after, before in self._next.items()}
        return {name: value.numpy() for name, value in found.items()}

    def get(self) -> Arrays:
        """Weights and state by name; weights of before the first step are left out."""
        return {name: value.numpy() for name, value in self._state.items()}

    def put(self, arrays: Mapping[str, npt.ArrayLike]) -> None:
        """Set weights or state.

        Raises:
            UsageError: There is none of that name.
        """
        for name, array in arrays.items():
            if name not in self._next.values():
                raise UsageError(f"the model trains no '{name}'")
            self._state[name] = self._value(np.asarray(array))

    def save(self, path: str | Path) -> None:
        """Write weights and state to an `.npz` file, whole or not at all.

        Raises:
            UsageError: It cannot be written, or no step was made.
        """
        file = Path(path)
        if lacking := [name for name in self._next.values() if name not in self._state]:
            raise UsageError(f"'{lacking[0]}' is the model's own before the first step")
        check_file(file, (".npz",), "checkpoint")
        with new_file(file) as scratch, scratch.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **self.get())

    def load(self, path: str | Path) -> None:
        """Go on from a file of `save`.

        Raises:
            UsageError: It cannot be read, or is of another model.
        """
        try:
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                arrays = dict(stored)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"the checkpoint cannot be read: {reason}", path=path) from error
        if lacking := [name for name in self._next.values() if name not in arrays]:
            raise UsageError(f"the checkpoint has no '{lacking[0]}'", path=path)
        self.put(arrays)


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
