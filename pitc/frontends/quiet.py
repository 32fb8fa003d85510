"""Other libraries kept quiet: what they print, log and warn of goes to `pitc.frontends`' log."""

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

#: Packages whose loggers say what a user of pitc cannot act on.
PACKAGES = ("torch", "onnxscript", "onnx_ir", "transformers", "huggingface_hub")
_log = logging.getLogger("pitc.frontends")


class _Captured(io.TextIOBase):
    """A stream that keeps lines while a block runs; who still holds it later writes through."""

    def __init__(self, name: str) -> None:
        self._name, self._usual = name, getattr(sys, name)
        self._rest, self.lines = "", list[str]()
        self.open = True

    def write(self, text: str, /) -> int:
        if not self.open:
            return int(getattr(sys, self._name).write(text))
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        self.lines += [line for line in lines if line.strip()]
        return len(text)

    def flush(self) -> None:
        if not self.open:
            getattr(sys, self._name).flush()

    def writable(self) -> bool:
        return True

    def __enter__(self) -> "_Captured":
        setattr(sys, self._name, self)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(sys, self._name, self._usual)
        self.open = False
        for line in (*self.lines, self._rest):
            if line.strip():
                _log.debug("%s: %s", self._name, line)


@contextmanager
def quiet(*, verbose: bool = False) -> Iterator[None]:
    """Keep stdout, stderr, warnings and logs of other libraries from the user while a block runs.

    All of it is for the process, so that other threads are kept quiet meanwhile, too.

    Args:
        verbose: Leave all of it as it is.
    """
    if verbose:
        yield
        return
    with (
        warnings.catch_warnings(record=True) as caught,
        _Captured("stdout"),
        _Captured("stderr"),
        _errors_only(),
    ):
        warnings.simplefilter("always")
        yield
    for warning in caught:
        _log.debug("%s: %s", warning.category.__name__, warning.message)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Loggers of other libraries let errors through, and nothing below."""
    known = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in PACKAGES]
    loggers = [logging.getLogger(name) for name in dict.fromkeys([*PACKAGES, *known])]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.level, logging.ERROR))
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
