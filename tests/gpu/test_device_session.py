"""Sessions on a GPU that is not there: values, what is copied, neighbours, threads, weights.

Device memory is closed to the host but for kernels and copies, and work waits in streams until
somebody waits for it: a copy too few is a crash or a wrong value, one too many is counted.
"""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from pitc.ir.plan import CUDA_EP_NAME, EP_NAME
from tests.device_support import (
    NEIGHBOUR,
    Call,
    FakeDriver,
    bind_on_device,
    cuda_node,
    devices,
    failure,
    feeds,
    model,
    on_device,
    pack,
    process,
    save_cuda,
    session,
    told,
    unpack,
)
from tests.runtime_support import (
    BOOL,
    DETECT,
    FLOAT,
    INT32,
    ROWS,
    Value,
    kernel_plan,
    make_model,
    pit_node,
)

CUBE: Value = ("x", FLOAT, ["b", "s", "n"])
OUT: Value = ("y", FLOAT, None)
LONG: Value = ("y", TensorProto.INT64, None)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Call]:
    with process() as call:
        yield call


def round_trip(dims: str = "c0,c1,r", word: int = 4, kind: int = FLOAT) -> Any:
    """x -> packed -> y."""
    nodes = [pack("x", "packed", dims, word), unpack("packed", "y", dims, word)]
    return model(nodes, [("x", kind, None)], [("packed", kind, None), ("y", kind, None)])


# ---- values

LAYOUTS = {
    "c0,c1,r": lambda x: x,
    "l,r": lambda x: x.reshape(-1, x.shape[2]),
    "c0,r,c1": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1)),
    "r,c1,c0,r": lambda x: np.ascontiguousarray(np.stack([x, -x]).transpose(0, 2, 1, 3)),
    "c0,c1": lambda x: np.ascontiguousarray(x[:, :, 0]),
}


def _reference(laid: Any, dims: str, live: Any) -> tuple[Any, Any]:
    """What pack and unpack give, by NumPy."""
    names = dims.split(",")
    if "l" in names:
        mask = live.reshape(-1)
    else:
        mask = live if names.index("c0") < names.index("c1") else live.T
    axes = [i for i, name in enumerate(names) if name != "r"]
    front = np.moveaxis(laid, axes, range(len(axes)))
    order = np.argsort(np.arange(live.size).reshape(live.shape).reshape(-1)[live.reshape(-1)])
    if mask is not live and mask.ndim == 2:
        rows = np.arange(live.size).reshape(live.shape).T[mask]
        order = np.argsort(rows)
    packed = front[mask][order]
    shape = mask.shape + (1,) * (front.ndim - mask.ndim)
    dead = np.moveaxis(np.where(mask.reshape(shape), front, 0), range(len(axes)), axes)
    return packed, dead


def _values(folder: Path, dims: str, word: int, dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    run = session(save_cuda(folder, round_trip(dims, word, kind)))
    for width in (4, 8, 3, 64):
        for seed, live in enumerate((None, np.zeros((3, 5), bool), np.ones((3, 5), bool))):
            given = feeds(seed, width, dtype)
            live = given["live"] if live is None else live
            laid = LAYOUTS[dims](given["x"])
            packed, y = run.run(None, {"live": live, "x": laid})
            want_packed, want = _reference(laid, dims, live)
            assert np.array_equal(packed, want_packed), (width, seed)
            assert np.array_equal(y, want), (width, seed)


@pytest.mark.parametrize("dims", LAYOUTS)
@pytest.mark.parametrize(
    ("word", "dtype"), [(4, "float32"), (4, "int64"), (1, "int8"), (1, "float16")]
)
def test_values(gpu: Call, tmp_path: Path, dims: str, word: int, dtype: str) -> None:
    gpu(_values, tmp_path, dims, word, dtype)


def _empty(folder: Path) -> None:
    run = session(save_cuda(folder, round_trip()))
    for shape in ((0, 5, 4), (3, 0, 4), (3, 5, 0)):
        live = np.ones(shape[:2], bool)
        packed, y = run.run(None, {"live": live, "x": np.zeros(shape, np.float32)})
        assert packed.shape == (live.sum(), shape[2]) and y.shape == shape


def test_empty_tensors(gpu: Call, tmp_path: Path) -> None:
    gpu(_empty, tmp_path)


# ---- what is copied


def neighbours() -> Any:
    """Add of the neighbour's, pack, MatMul and Relu of the neighbour's, unpack, Add of it again."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["x2"]),
        pack("x2", "packed"),
        helper.make_node("MatMul", ["packed", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        unpack("r", "u"),
        helper.make_node("Add", ["u", "x2"], ["y"]),
    ]
    values: list[Value] = [(name, FLOAT, None) for name in ("x2", "packed", "m", "r", "u")]
    weights = {"w": np.eye(8, dtype=np.float32)[::-1].copy()}
    return model(nodes, [CUBE], [OUT], values, weights)


def _expected(given: dict[str, Any]) -> Any:
    doubled = 2 * given["x"]
    return np.where(given["live"][..., None], np.maximum(doubled[..., ::-1], 0), 0) + doubled


def _neighbours(folder: Path, providers: tuple[str, ...]) -> None:
    driver = FakeDriver()
    trace = folder / "trace"
    run = session(save_cuda(folder, neighbours()), providers, trace=trace)
    given = feeds()
    want = _expected(given)
    for _ in range(3):  # memory is planned after the first run
        assert np.array_equal(run.run(None, given)[0], want)
    with driver.counted() as warm:
        assert np.array_equal(run.run(None, given)[0], want)
    # x goes up and y comes down; everything between stays where it is, on one stream.
    assert (warm["copies_up"], warm["copies_down"], warm["copies_across"]) == (1, 1, 0)
    assert (warm["launches"], warm["fills"], warm["streams"], warm["bytes"]) == (2, 1, 0, 0), warm
    # For y, and for the end. Older releases take stream and allocator from two providers.
    recent = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 31)
    assert warm["waits"] == 2 or not recent, warm
    given["live"] = ~given["live"]
    with driver.counted() as other:
        assert np.array_equal(run.run(None, given)[0], _expected(given))
    assert other["copies_up"] == 2  # and the list, once for both nodes
    lines = told(trace)
    assert [line["node"] for line in lines[:2]] == [
        "pitc: node 'pack_x2' (pack): ",
        "pitc: node 'unpack_r' (unpack): ",
    ]
    assert [line["uploads"] for line in lines] == [1] + 7 * [0] + [1, 0]
    assert [line["downloads"] for line in lines] == 10 * [0]


@pytest.mark.parametrize("order", [(CUDA_EP_NAME, NEIGHBOUR), (NEIGHBOUR, CUDA_EP_NAME)])
def test_neighbours_share_tensors_and_a_stream(
    gpu: Call, tmp_path: Path, order: tuple[str, ...]
) -> None:
    gpu(_neighbours, tmp_path, (*order, EP_NAME))


def _bound(folder: Path) -> None:
    driver = FakeDriver()
    run = session(save_cuda(folder, round_trip()))
    given = feeds()
    binding = run.io_binding()
    binding.bind_cpu_input("live", given["live"])
    value = on_device(given["x"])
    binding.bind_ortvalue_input("x", value)
    for name in ("packed", "y"):
        bind_on_device(binding, name)
    run.run_with_iobinding(binding)
    with driver.counted() as warm:
        run.run_with_iobinding(binding)
    assert (warm["copies_up"], warm["copies_down"], warm["launches"]) == (0, 0, 2)
    packed, y = (out.numpy() for out in binding.get_outputs())
    live = given["live"]
    assert np.array_equal(packed, given["x"][live])
    assert np.array_equal(y, np.where(live[..., None], given["x"], 0))


def test_values_on_the_device_stay_there(gpu: Call, tmp_path: Path) -> None:
    gpu(_bound, tmp_path)


def _behind_the_cpu(folder: Path, providers: tuple[str, ...]) -> None:
    """Neg is the CPU's: what it reads is brought, and what it gives lies in the host's memory.

    That copy has no stream, and the neighbour's is one that no other waits for.
    """
    trace = folder / "trace"
    nodes = [
        helper.make_node("Relu", ["x"], ["p"]),
        pack("p", "packed"),
        helper.make_node("Neg", ["packed"], ["n"]),
        unpack("n", "y"),
    ]
    values: list[Value] = [(name, FLOAT, None) for name in ("p", "packed", "n")]
    path = save_cuda(folder, model(nodes, [CUBE], [OUT], values))
    run = session(path, providers, trace=trace)
    for seed in range(3):
        given = feeds(seed)
        want = np.where(given["live"][..., None], -np.maximum(given["x"], 0), 0)
        assert np.array_equal(run.run(None, given)[0], want)
    assert [line["uploads"] for line in told(trace)] == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("order", [(CUDA_EP_NAME, NEIGHBOUR), (NEIGHBOUR, CUDA_EP_NAME)])
def test_what_lies_on_the_host_is_brought(
    gpu: Call, tmp_path: Path, order: tuple[str, ...]
) -> None:
    gpu(_behind_the_cpu, tmp_path, (*order, EP_NAME))


def _lists_on_the_device(folder: Path) -> None:
    """Given by a caller, or copied there by a neighbour: they are read back, and checked."""
    trace = folder / "trace"
    plan = kernel_plan("pack", "pack_b4", dims="c0,c1,r")
    inputs: list[Value] = [
        *(CUBE, ROWS, ("coords", INT32, [2, "t"])),
        ("live", TensorProto.BOOL, ["b", "s"]),
    ]
    node = cuda_node("p", plan, ["x", "rows", "coords", "live"], ["y"])
    run = session(save_cuda(folder, make_model([node], inputs, [OUT])), trace=trace)
    given = feeds()
    coords = np.stack(np.nonzero(given["live"])).astype(np.int32)
    rows = np.flatnonzero(given["live"]).astype(np.int32)

    def answer(where: Any) -> Any:
        binding = run.io_binding()
        for name, array in (("x", given["x"]), ("live", given["live"])):
            binding.bind_ortvalue_input(name, on_device(array))
        for name, array in (("rows", rows), ("coords", where)):
            binding.bind_ortvalue_input(name, on_device(array))
        binding.bind_output("y", "cpu")
        run.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    assert np.array_equal(answer(coords), given["x"][given["live"]])
    assert told(trace)[0]["downloads"] == 2
    wrong = coords.copy()
    wrong[1, 2] = 5
    text = failure(answer, wrong)
    assert text.endswith("pitc: node 'p' (pack): expected 0 <= coords[1][2] < 5, got 5"), text
    assert np.array_equal(answer(coords), given["x"][given["live"]])


def test_lists_on_the_device_are_checked(gpu: Call, tmp_path: Path) -> None:
    gpu(_lists_on_the_device, tmp_path)


# ---- masks


def masked(regions: int, dtype: str | None) -> Any:
    """Packed regions of one domain each; their masks are inputs of a type, or the neighbour makes
    them.
    """
    nodes, inputs, outputs, values = [], [CUBE], [], []
    for i in range(regions):
        live = f"live{i}"
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or "float32"))
        inputs.append((live if dtype else f"m{i}", kind, ["b", "s"]))
        if not dtype:
            nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"]))
            nodes.append(helper.make_node("Cast", [f"r{i}"], [live], to=BOOL))
        lists = [f"{name}{i}" for name in ("rows", "coords", "offsets")]
        nodes.append(pit_node(f"d{i}", DETECT, [live], lists))
        shapes = ([f"t{i}"], [2, f"t{i}"], [f"e{i}"])
        values += [(name, INT32, shape) for name, shape in zip(lists, shapes, strict=True)]
        plan = kernel_plan("unpack", "unpack_b4", dims="c0,c1,r")
        gather = kernel_plan("pack", "pack_b4", dims="c0,c1,r")
        for each in range(2):  # two regions of the domain
            packed, whole = f"p{i}{each}", f"y{i}{each}"
            nodes.append(cuda_node(packed, gather, ["x", *lists[:2], live], [packed]))
            nodes.append(cuda_node(whole, plan, [packed, *lists[:2], live], [whole]))
            values.append((packed, FLOAT, None))
            outputs.append((whole, FLOAT, None))
    return make_model(nodes, inputs, outputs, values)


def _masks(folder: Path, domains: int, dtype: str | None) -> dict[str, int]:
    driver = FakeDriver()
    made = masked(domains, dtype)
    run = session(save_cuda(folder, made), (NEIGHBOUR, CUDA_EP_NAME, EP_NAME))
    given = {"x": feeds()["x"]}
    lives = [np.random.default_rng(seed).random((3, 5)) < 0.6 for seed in range(domains)]
    for i, live in enumerate(lives):
        given[f"live{i}" if dtype else f"m{i}"] = live.astype(dtype or "float32")
    wanted = [np.where(live[..., None], given["x"], 0) for live in lives for _ in range(2)]
    for _ in range(3):  # memory is planned after the first run
        run.run(None, given)
    with driver.counted() as warm:
        found = run.run(None, given)
    for got, want in zip(found, wanted, strict=True):
        assert np.array_equal(got, want)
    # Outputs come down, and a mask for each domain that does not lie on the host.
    assert warm["copies_down"] == len(wanted) + domains * (not dtype), warm
    return warm


@pytest.mark.parametrize(("domains", "dtype"), [(1, "bool"), (1, "int64"), (2, "float32")])
def test_a_mask_of_the_device_is_copied_once_a_domain(
    gpu: Call, tmp_path: Path, domains: int, dtype: str
) -> None:
    """What `pitc explain` tells of (`Report.host_copies`)."""
    given, made = (gpu(_masks, tmp_path / str(kind), domains, kind) for kind in (dtype, None))
    # For the stream in front of the copy, and for the copy, which ONNX Runtime gives no stream.
    recent = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 31)
    assert made["waits"] - given["waits"] == 2 * domains or not recent, (given, made)


# ---- threads, weights, devices


def _threads(folder: Path, providers: tuple[str, ...]) -> None:
    run = session(save_cuda(folder, neighbours()), providers)
    given = [feeds(seed) for seed in range(16)]
    want = [_expected(g) for g in given]

    def work(first: int) -> int:
        orders = [(first + k) % len(given) for k in range(2 * len(given))]
        return sum(not np.array_equal(run.run(None, given[i])[0], want[i]) for i in orders)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0


@pytest.mark.parametrize("order", [(CUDA_EP_NAME, NEIGHBOUR), (NEIGHBOUR, CUDA_EP_NAME)])
def test_a_session_runs_on_many_threads(gpu: Call, tmp_path: Path, order: tuple[str, ...]) -> None:
    gpu(_threads, tmp_path, (*order, EP_NAME))


def _weights(folder: Path) -> None:
    """`x` is a constant here."""
    driver = FakeDriver()

    def made(name: str, x: Any) -> Any:
        return session(save_cuda(folder, model([pack("x", "y")], [], [OUT], (), {"x": x}), name))

    x = np.arange(3 * 5 * 1000, dtype=np.float32).reshape(3, 5, 1000)
    live = feeds()["live"]
    gc.collect()
    before = driver.settled("bytes")
    first = made("a.onnx", x)
    assert driver.settled("bytes") == before + x.nbytes
    with driver.counted() as more:
        second = made("b.onnx", x)
        last = x.copy()
        last[-1, -1, -1] += 1
        third = made("c.onnx", last)
    assert more["bytes"] == x.nbytes  # of the one that differs
    for run, weights in ((first, x), (second, x), (third, last)):
        assert np.array_equal(run.run(None, {"live": live})[0], weights[live])
    del first, third, run
    gc.collect()
    assert np.array_equal(second.run(None, {"live": live})[0], x[live])
    del second
    gc.collect()
    assert driver.settled("bytes") == before


def test_sessions_share_weights(gpu: Call, tmp_path: Path) -> None:
    gpu(_weights, tmp_path)


def _twin(x: Any) -> Any:
    """Other words, all but the first two as in `x`, and the same digest (device/constants.cc)."""
    full, factor = 2**64 - 1, 0x9E3779B97F4A7C15

    def after(word: int) -> int:
        digest = (x.nbytes ^ word) * factor & full
        return digest ^ digest >> 29

    words = x.copy()
    first, second = map(int, x.flat[:2])
    words.flat[0] = first + 1
    words.flat[1] = np.uint64(after(first) ^ second ^ after(first + 1)).astype(np.int64)
    return words


def _digests(folder: Path) -> None:
    x = np.arange(3 * 5 * 7, dtype=np.int64).reshape(3, 5, 7)
    live = np.ones((3, 5), bool)
    runs = [
        session(save_cuda(folder, model([pack("x", "y")], [], [LONG], (), {"x": w}), f"{i}.onnx"))
        for i, w in enumerate((x, _twin(x)))
    ]
    assert np.array_equal(runs[0].run(None, {"live": live})[0], x[live])
    assert np.array_equal(runs[1].run(None, {"live": live})[0], _twin(x)[live])


def test_weights_are_the_same_only_if_every_byte_is(gpu: Call, tmp_path: Path) -> None:
    gpu(_digests, tmp_path)


def _everything_is_given_back(folder: Path) -> None:
    driver = FakeDriver()
    names = ("bytes", "streams", "modules")
    devices(CUDA_EP_NAME)
    on_device(np.zeros(1))  # who has no stream shares one
    gc.collect()
    before = {name: driver.settled(name) for name in names}
    run = session(save_cuda(folder, round_trip()))
    given = feeds()
    for seed in range(20):  # more lists than are kept
        given = feeds(seed)
        assert np.array_equal(run.run(None, given)[0], given["x"][given["live"]])
    outputs = run.run_with_ort_values(None, {name: on_device(a) for name, a in given.items()})
    del run
    gc.collect()
    assert np.array_equal(outputs[0].numpy(), given["x"][given["live"]])  # they outlive a session
    del outputs
    gc.collect()
    after = {name: driver.settled(name) for name in names}
    assert after == before, (before, after)


def test_everything_is_given_back(gpu: Call, tmp_path: Path) -> None:
    gpu(_everything_is_given_back, tmp_path)


def _two_devices(folder: Path) -> None:
    path = save_cuda(folder, round_trip())
    given = feeds()
    for number in (0, 1):
        answer = session(path, number=number).run(None, given)
        assert np.array_equal(answer[0], given["x"][given["live"]])


@pytest.mark.parametrize("knobs", [{}, {"pools": 0}, {"arch": 86}, {"arch": 120}])
def test_other_devices(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """Two of them; without pools of memory; with the code of an older one, or with PTX."""
    with process(devices=2, **knobs) as call:
        call(_two_devices, tmp_path)
        call(_neighbours, tmp_path / "n", (CUDA_EP_NAME, NEIGHBOUR, EP_NAME))
        assert (call(_count, "compiled") > 0) == (knobs.get("arch") == 120)


def _count(name: str) -> int:
    return FakeDriver().count(name)


def _nothing_is_touched(folder: Path) -> None:
    from tests.runtime_support import detect_model, save

    assert [d.ep_metadata["arch"] for d in devices(CUDA_EP_NAME)] == ["sm_90"]
    run = session(save(folder, detect_model()), (EP_NAME,))
    run.run(None, {"live": np.ones((2, 3), bool)})
    assert FakeDriver().count("contexts") == 0


def test_a_device_that_nobody_uses_is_not_touched(tmp_path: Path) -> None:
    with process() as call:
        call(_nothing_is_touched, tmp_path)
