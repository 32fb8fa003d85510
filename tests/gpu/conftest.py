"""Fixtures for tests of kernels and of the plug-in on GPUs, real or emulated ones."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.device_support import Call


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> "Iterator[Call]":
    """Calls functions in a process that has an emulated GPU."""
    # Imported here: a machine with a GPU has no TVM, and this file is read by all its tests.
    from tests.device_kernels import emulated_process

    with emulated_process() as call:
        yield call
