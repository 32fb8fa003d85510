"""A compiled encoder in a session: inputs that do not fit together, the same bits every time."""

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import pitc
from models.bert import BertConfig, bert
from tests.runtime_support import Array, quiet_options

RTOL = 1e-5  # norm-wise, float32
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Feeds = dict[str, Array]
Size = tuple[int, int]


@pytest.fixture(scope="module")
def source() -> bytes:
    return bert(BertConfig(), np.random.default_rng(5)).SerializeToString()


@pytest.fixture(scope="module")
def compiled(source: bytes, tmp_path_factory: pytest.TempPathFactory) -> pitc.CompiledModel:
    path = tmp_path_factory.mktemp("encoder") / "model.onnx"
    path.write_bytes(source)
    return pitc.compile(path, padding="attention_mask")


@pytest.fixture(scope="module")
def one_thread(compiled: pitc.CompiledModel) -> Any:
    return compiled.session(quiet_options())


@pytest.fixture(scope="module")
def reference(source: bytes) -> Any:
    return ort.InferenceSession(source, quiet_options(), providers=["CPUExecutionProvider"])


def feeds_of(seed: int, size: Size, **other: Size) -> Feeds:
    """Random inputs `[batch, sequence]`, a mask with holes among them; some of another size."""
    rng = np.random.default_rng(seed)
    high = dict(zip(INPUTS, (97, 2, 2), strict=True))
    return {n: rng.integers(0, high[n], other.get(n, size)).astype(np.int64) for n in INPUTS}


def assert_right(run: Any, reference: Any, feeds: Feeds) -> None:
    """Live tokens as ONNX Runtime says, 0 elsewhere."""
    (got,), (want,) = run.run(None, feeds), reference.run(None, feeds)
    live = feeds["attention_mask"] != 0
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.linalg.norm(got[live] - want[live]) <= RTOL * np.linalg.norm(want[live])
    assert not got[~live].any()


# ---- inputs of sizes that the model says are equal

IDS, MASK, TYPES = INPUTS
#: what is of another size than (4, 8)
MISFITS: list[dict[str, Size]] = [
    *({name: size} for name in (IDS, TYPES) for size in ((4, 10), (4, 6), (5, 8), (3, 8), (8, 4))),
    *({MASK: size} for size in ((4, 10), (4, 6), (5, 8), (3, 8), (4, 0), (0, 8), (8, 4))),
    *({IDS: size, TYPES: size} for size in ((4, 10), (6, 8))),
]
SAID = (
    r"pitc: node '(?P<node>[^']+)' \(pack\): "
    r"expected x with extent (?P<extent>\d+) \(that of the mask\) in dimension (?P<dim>\d), "
    r"got \w+ \[(?P<got>[\d, ]+)\]: .*inputs are of different sizes$"
)


@pytest.mark.parametrize("sizes", MISFITS, ids=str)
def test_sizes_that_differ_are_an_error(
    compiled: pitc.CompiledModel, one_thread: Any, reference: Any, sizes: dict[str, Size]
) -> None:
    """Never a part of the larger input; the session lives on."""
    feeds = feeds_of(1, (4, 8), **sizes)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        reference.run(None, feeds)
    with pytest.raises(Exception, match=SAID) as caught:
        one_thread.run(None, feeds)
    said = re.search(SAID, str(caught.value))
    assert said is not None
    assert said["node"] in {n.name for n in onnx.load(compiled.graph).graph.node}
    expected, dim = int(said["extent"]), int(said["dim"])
    assert expected == feeds[MASK].shape[dim] != int(said["got"].split(", ")[dim])
    assert_right(one_thread, reference, feeds_of(2, (4, 8)))


@pytest.mark.parametrize("size", [(4, 8), (4, 10), (1, 1), (5, 33), (3, 0), (0, 8)])
def test_sizes_that_agree_give_the_right_answer(
    one_thread: Any, reference: Any, size: Size
) -> None:
    assert_right(one_thread, reference, feeds_of(3, size))


@pytest.mark.parametrize("sequence", ["sequence", 8])
def test_a_batch_of_one(compiled: pitc.CompiledModel, sequence: str | int, tmp_path: Path) -> None:
    """It runs on the nodes that any batch runs on."""
    model = bert(BertConfig(batch=1, sequence=sequence), np.random.default_rng(5))
    onnx.save(model, tmp_path / "model.onnx")
    one = pitc.compile(tmp_path / "model.onnx", padding="attention_mask")
    run, reference = (
        one.session(quiet_options()),
        ort.InferenceSession(model.SerializeToString(), quiet_options(), ["CPUExecutionProvider"]),
    )
    for length in (8,) if sequence == 8 else (8, 1, 0, 33):
        feeds = feeds_of(6, (1, length))
        for mask in (feeds[MASK], 0 * feeds[MASK], 0 * feeds[MASK] + 1):
            assert_right(run, reference, feeds | {MASK: mask})
    assert pit_nodes(one) == pit_nodes(compiled)


def pit_nodes(model: pitc.CompiledModel) -> Counter[str]:
    """What the plans of the nodes are, without names."""
    nodes = (n for n in onnx.load(model.graph).graph.node if n.op_type == "EPContext")
    plans = (helper.get_node_attr_value(n, "ep_cache_context").decode() for n in nodes)
    return Counter(text.split("op=")[1].split("\n")[0] for text in plans)


# ---- the same bits


def test_bits_do_not_depend_on_threads_and_runs(
    compiled: pitc.CompiledModel, one_thread: Any
) -> None:
    two = compiled.session(quiet_options(threads=2))
    for seed, size in enumerate([(1, 1), (3, 17), (96, 64)]):  # the last one is split
        feeds = feeds_of(seed, size)
        (want,) = one_thread.run(None, feeds)
        for run in (one_thread, two, two, one_thread):
            np.testing.assert_array_equal(run.run(None, feeds)[0], want, strict=True)


def test_eight_threads_with_shapes_of_their_own(
    compiled: pitc.CompiledModel, reference: Any
) -> None:
    run = compiled.session(quiet_options(threads=2))
    feeds = [feeds_of(i, (1 + i % 4, 3 + 8 * i)) for i in range(8)]
    for one in feeds:
        assert_right(run, reference, one)
    want = [run.run(None, one)[0] for one in feeds]
    good = [0] * 8

    def work(i: int) -> None:
        for _ in range(10):
            good[i] += np.array_equal(run.run(None, feeds[i])[0], want[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [10] * 8
