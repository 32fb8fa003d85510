"""One thread on one core.

Standard library only: the thread limits must be set before any maths library is imported.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
)


def limit_threads() -> None:
    """Ask every maths library that is imported later to use one thread."""
    for name in THREAD_LIMITS:
        os.environ[name] = "false" if name.startswith("TOKENIZERS") else "1"


def allowed_cores() -> set[int]:
    """The cores this thread may run on; empty where the system does not say."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


@contextmanager
def one_core() -> Iterator[int | None]:
    """Keep this thread on one core, the last of those allowed, until the block ends.

    Yields:
        The core, or None where the system cannot pin.
    """
    before = allowed_cores()
    if not before:
        yield None
        return
    os.sched_setaffinity(0, {max(before)})
    try:
        yield max(before)
    finally:
        os.sched_setaffinity(0, before)
