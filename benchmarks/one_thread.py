"""Limits on threads of maths libraries, which read them when they are imported: before that, and so
with the standard library only.
"""

import os

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
