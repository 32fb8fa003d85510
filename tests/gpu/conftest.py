"""Fixtures for tests of kernels and of the plug-in on GPUs, real or emulated ones."""

from collections.abc import Iterator

import pytest

from tests.device_kernels import emulated_process
from tests.device_support import Call


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> Iterator[Call]:
    """Calls functions in a process that has an emulated GPU."""
    with emulated_process() as call:
        yield call
