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
from pitc.ir.metadata import STATE
from pitc.runtime.dlpack import Tensor
from pitc.session import failures, fit, fitted, input_specs

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
            UsageError: An input is missing or unknown, has another type or rank, or is a weight or
                state; or the model fails. Weights and state are then as before.
        """
        held = set(self._next.values())
        given = fitted(self._session, feeds, held)
        for name, array in given.items():
            if name in held:
                raise UsageError(f"'{name}' is kept by the trainer", hint="change it with `put`")
            _check_host(name, array)
        with failures(self._session, given):
            binding = self._session.io_binding()
            for name, value in self._state.items():
                binding.bind_ortvalue_input(name, value)
            for name, array in given.items():
                binding.bind_ortvalue_input(name, self._value(array))
            for name in self._outputs:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
        found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        self._state |= {before: found.pop(after) for after, before in self._next.items()}
        return {name: value.numpy() for name, value in found.items()}

    def get(self) -> Arrays:
        """Weights and state by name, as copies; weights of before the first step are left out."""
        return {name: value.numpy().copy() for name, value in self._state.items()}

    def put(self, arrays: Mapping[str, npt.ArrayLike]) -> None:
        """Set weights or state to copies of arrays: all of them, or none.

        Raises:
            UsageError: There is none of that name, or it has another type or shape.
        """
        known, fits = input_specs(self._session), dict[str, Any]()
        for name, array in arrays.items():
            if name not in self._next.values():
                raise UsageError(f"the model trains no '{name}'")
            fits[name] = fit(name, array, known[name], self._session, ranked=True)
            _check_host(name, fits[name])
        self._state |= {name: self._value(array.copy()) for name, array in fits.items()}

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
            kept = {name: value.numpy() for name, value in self._state.items()}
            np.savez(stream, allow_pickle=False, **kept)

    def load(self, path: str | Path) -> None:
        """Go on from a file of `save`.

        Raises:
            UsageError: It cannot be read, or is of another model. Weights and state are then as
                before.
        """
        try:
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                arrays = dict(stored)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"the checkpoint cannot be read: {reason}", path=path) from error
        if lacking := [name for name in self._next.values() if name not in arrays]:
            raise UsageError(f"the checkpoint has no '{lacking[0]}'", path=path)
        try:
            self.put(arrays)
        except UsageError as error:
            raise UsageError(error.message, path=path, hint=error.hint) from error


def _check_host(name: str, array: Any) -> None:
    if isinstance(array, Tensor):
        place = "the host" if array.device is None else f"cuda:{array.device}"
        text = f"input {name!r}: a trainer takes NumPy's types on the host, got {array.dtype}"
        raise UsageError(f"{text} on {place}")


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
