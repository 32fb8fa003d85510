"""Python's cyclic garbage collector, kept from looking at a growing graph over and over."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

RARE = (100_000, 50, 100)  # objects made between two looks at the youngest; the usual number is 700

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []  # the thresholds to go back to, once per user


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect cycles rarely while the block runs: a compiler makes many objects that all stay.

    The setting is one for the process; the last of several users that overlap puts it back.
    """
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        gc.set_threshold(*RARE)
    try:
        yield
    finally:
        with _lock:
            before = _usual.pop()
            if not _usual:
                gc.set_threshold(*before)
