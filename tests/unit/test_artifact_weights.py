"""weights.bin: what is stored once, what apart, and its checksum."""

import errno
import hashlib
import threading
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from pitc.artifact.manifest import WEIGHTS
from pitc.artifact.weights import COMPARED, SAMPLED, WeightFile
from pitc.errors import MachineError


def model_of(*arrays: np.ndarray) -> ir.Model:
    values = []
    for i, array in enumerate(arrays):
        tensor = ir.Tensor(array, name=f"w{i}")
        values.append(ir.Value(name=f"w{i}", const_value=tensor))
    return ir.Model(ir.Graph([], [], nodes=[], initializers=values), ir_version=10)


def places(model: ir.Model) -> list[int]:
    found = []
    for value in model.graph.initializers.values():
        assert isinstance(value.const_value, ir.ExternalTensor)
        found.append(value.const_value.offset or 0)
    return found


@pytest.mark.parametrize("size", [1024, SAMPLED * 8, 3 * COMPARED + 20])
def test_bytes_are_stored_once_and_only_if_all_are_equal(tmp_path: Path, size: int) -> None:
    one = np.arange(size // 4, dtype=np.uint32)
    step = max(1, size // SAMPLED) | 1
    others = []
    for at in (1, size // 2 // step * step + 1, size - 1):  # not among the bytes that are sampled
        other = one.copy()
        other.view(np.uint8)[at] ^= 1
        others.append(other)
    with WeightFile(tmp_path) as file:
        model = model_of(one, *others, one.copy(), others[1].copy(), one.view(np.float32))
        file.externalise(model)
        record = file.record()
    at = places(model)
    assert len(set(at[:4])) == 4
    assert at[4:] == [at[0], at[2], at[0]]
    content = (tmp_path / WEIGHTS).read_bytes()
    assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    for place, array in zip(at, [one, *others], strict=False):
        assert content[place : place + size] == array.tobytes()


def test_what_differs_is_seldom_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where each number has bytes that are always 0, as bfloat16 has that became wider."""
    compared = []
    holds = WeightFile._holds
    monkeypatch.setattr(
        WeightFile, "_holds", lambda *x: compared.append(x) or holds(*x), raising=True
    )
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 16, (40, 64 * 1024), np.uint32) << 16
    with WeightFile(tmp_path) as file:
        file.externalise(model_of(*words.view(np.float32), words[3].copy()))
    assert len(compared) == 1


def test_graphs_share_what_they_have_in_common(tmp_path: Path) -> None:
    shared = np.ones(5000, np.float32)
    with WeightFile(tmp_path) as file:
        models = [model_of(shared, np.full(300, k, np.float32)) for k in (1.0, 2.0)]
        for model in models:
            file.externalise(model)
    (a, b), (c, d) = map(places, models)
    assert a == c
    assert b != d


def test_beside_a_block_that_raises(tmp_path: Path) -> None:
    """The tensor that is being written is written, and no further one."""
    begun = threading.Event()

    def late() -> ir.TensorProtocol:
        begun.set()
        end = time.monotonic() + 60
        while not file._stopped and time.monotonic() < end:
            time.sleep(0.001)
        return ir.tensor(np.ones(1000, np.float32))

    model = model_of(np.zeros(1000, np.float32), np.full(1000, 2, np.float32))
    first = next(iter(model.graph.initializers.values()))
    first.const_value = ir.LazyTensor(late, ir.DataType.FLOAT, ir.Shape([1000]), name="w")
    with (
        WeightFile(tmp_path) as file,
        pytest.raises(KeyboardInterrupt),
        file.externalising([model]),
    ):
        assert begun.wait(60)
        raise KeyboardInterrupt
    assert (tmp_path / WEIGHTS).stat().st_size == 4000


def test_beside_a_block_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Also where the block raises because of it."""
    model = model_of(np.zeros(1000, np.float32))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with WeightFile(tmp_path) as file:
        file._offset = fail  # type: ignore[assignment]
        with pytest.raises(OSError, match="no space left"), file.externalising([model]):
            pass
        with pytest.raises(OSError, match="no space left"), file.externalising([model]):
            raise MachineError("the linker failed")
