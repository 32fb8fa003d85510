"""pack and unpack on a GPU that is not there, by the widest words that a row is made of."""

from pathlib import Path

import numpy as np
import pytest

from pitc.ir.kernel import KernelRequest
from tests.device_kernels import emulated_library, save_with
from tests.device_support import Call, FakeDriver, feeds, model, pack, session, unpack
from tests.runtime_support import FLOAT, Array

HALF, BYTE = 10, 3
REQUESTS = tuple(
    KernelRequest.of(family, words, "cuda")
    for family in ("pack", "unpack")
    for words in ("int32", "int8")
)


@pytest.fixture(name="library", scope="module")
def _library() -> Path:
    return emulated_library(*REQUESTS)


def _moved(
    folder: Path, library: Path, element: int, word: int, given: dict[str, Array]
) -> tuple[Array, Array, str]:
    """Packed rows, what they become unpacked, and the kernel that did that."""
    ends = [("y", element, None), ("z", element, None)]
    nodes = [pack("x", "y", word=word), unpack("y", "z", word=word)]
    made = model(nodes, [("x", element, ["b", "s", "n"])], ends)
    run = session(save_with(folder, library, made, "model.onnx"))
    y, z = run.run(None, given)
    return y, z, FakeDriver().launched()


@pytest.mark.parametrize(
    ("element", "dtype", "word", "width", "moved"),
    [
        (FLOAT, np.float32, 4, 8, 16),
        (FLOAT, np.float32, 4, 7, 4),
        (HALF, np.float16, 1, 8, 16),
        (HALF, np.float16, 1, 6, 4),
        (HALF, np.float16, 1, 3, 2),
        (BYTE, np.int8, 1, 5, 1),
        (BYTE, np.int8, 1, 48, 16),
    ],
)
def test_rows_move_in_wide_words(
    gpu: Call,
    library: Path,
    tmp_path: Path,
    element: int,
    dtype: type,
    word: int,
    width: int,
    moved: int,
) -> None:
    given = feeds(3, width, dtype)
    y, z, launched = gpu(_moved, tmp_path, library, element, word, given)
    live = given["live"]
    np.testing.assert_array_equal(y, given["x"][live])
    np.testing.assert_array_equal(z, np.where(live[..., None], given["x"], 0))
    assert launched == f"unpack_b{moved}_cuda_kernel"
