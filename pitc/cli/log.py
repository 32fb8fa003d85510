"""Where the log goes: the loggers `pitc.*` of the standard library, silent by themselves."""

import logging
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_opened: list[logging.Handler] = []


def log_to(*, verbose: int = 0, log_file: Path | str | None = None) -> None:
    """Show what the loggers `pitc.*` are told.

    Args:
        verbose: On stderr: 1 for steps, 2 for all of it.
        log_file: In a file, all of it.

    Raises:
        UsageError: The file cannot be written.
    """
    from pitc.errors import UsageError

    logger = logging.getLogger("pitc")
    if verbose:
        _add(logging.StreamHandler(), logging.INFO if verbose == 1 else logging.DEBUG)
    if log_file is not None:
        try:
            _add(logging.FileHandler(log_file, encoding="utf-8"), logging.DEBUG)
        except OSError as error:
            text = f"the log cannot be written: {error.strerror or error}"
            raise UsageError(text, path=log_file) from error
    if _opened:
        logger.setLevel(min(handler.level for handler in _opened))


def _add(handler: logging.Handler, level: int) -> None:
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger("pitc").addHandler(handler)
    _opened.append(handler)


def end_log() -> None:
    """Close what `log_to` has opened."""
    logger = logging.getLogger("pitc")
    while _opened:
        handler = _opened.pop()
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(logging.NOTSET)
