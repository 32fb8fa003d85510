"""Libraries of operators that ONNX Runtime does not have, for every session that pitc makes.

A model of a domain of its own (`acme:Foo`) needs the library that its operators come from
(`OrtCustomOp`), where it is compiled, checked, timed and run.
"""

import logging
import threading
from pathlib import Path
from typing import Any

from pitc.errors import UsageError

_log = logging.getLogger("pitc.session")
_lock = threading.Lock()
_libraries: list[str] = []


def register_custom_ops(library: str | Path) -> None:
    """Register a library of operators with every session that pitc makes from now on.

    With options of your own (`CompiledModel.session(options)`), register the library by
    `options.register_custom_ops_library`.

    Args:
        library: A shared library that exports `RegisterCustomOps`.

    Raises:
        UsageError: There is no such file, or ONNX Runtime cannot load it.
    """
    import onnxruntime

    path = Path(library)
    if not path.is_file():
        raise UsageError("there is no such library of operators", path=path)
    place = str(path.resolve())
    with _lock:
        if place in _libraries:
            return
        try:
            onnxruntime.SessionOptions().register_custom_ops_library(place)
        except Exception as error:  # its classes are not public
            text = f"ONNX Runtime cannot load it as a library of operators: {error}"
            raise UsageError(text, path=path) from error
        _libraries.append(place)
    _log.info("sessions register the operators of %s", place)


def add_custom_ops(options: Any) -> Any:
    """Add the registered libraries to an `onnxruntime.SessionOptions`, which is returned."""
    for library in tuple(_libraries):
        options.register_custom_ops_library(library)
    return options
