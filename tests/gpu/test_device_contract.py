"""contract and ffn on a GPU that is not there: what lives is found, listed and multiplied without
the host, by real kernels on the emulator, in ONNX Runtime.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

import pitc
from models.half import half
from models.opt import OptConfig, opt_ffn
from pitc.codegen import reference
from pitc.ir.cuda_target import CUDA_ARCHS
from pitc.ir.cuda_variants import (
    SUMMED_ROWS,
    block_count,
    block_width,
    features_of,
    line_of,
    offers_of,
)
from pitc.ir.gpu_speed import GpuPrices, clock_table, prices_of
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import PANEL_WIDTH, pack_panels, panel_count
from tests.cuda_emulator import ARCH
from tests.detect_reference import detected, parts_of
from tests.device_kernels import (
    emulated_library,
    emulator_compiles,
    save_with,
)
from tests.device_support import (
    Call,
    FakeDriver,
    bind_on_device,
    cuda_node,
    detect,
    failure,
    on_device,
    session,
    told,
)
from tests.plan_text import Plan, contract_plan
from tests.runtime_support import BOOL, COORDS, FLOAT, OFFSETS, ROWS, Array, make_model

DTYPES = {
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
}
SIZES = {"float16": (320, 72), "bfloat16": (300, 68), "float32": (160, 72)}
"""k and n; rows of bfloat16 start anywhere."""
INNER = 64
EPILOGUE: dict[str, Any] = {"activation": "none", "residual": 1}
MULTIPROCESSORS = 2  # of the GPU that is not there
CUTS = ("dense", "tile", "block", "square")
EXACT = {"tf32": "0"}


def requests_of(dtype: str) -> Iterator[KernelRequest]:
    """What the compiler asks for, for products of `SIZES`."""
    k, n = SIZES[dtype]
    yield KernelRequest.of_cuda("gather_gemm", dtype, k=k, n=n, **EPILOGUE)
    yield KernelRequest.of_cuda("detect", dtype, k=k)
    yield KernelRequest.of_cuda("choose", dtype)
    yield KernelRequest.of_cuda("lists", dtype, k=k)
    yield KernelRequest.of_cuda("contract_tile", dtype, n=n, **EPILOGUE)
    yield KernelRequest.of_cuda("contract_block", dtype, n=n, **EPILOGUE)
    yield KernelRequest.of_cuda("contract_square", dtype, k=k, n=n, **EPILOGUE)
    if dtype == "float16":
        front = {"k": INNER, "n": k, "activation": "relu", "residual": 0, "bits": 1}
        yield KernelRequest.of_cuda("gather_gemm", dtype, **front)
        yield KernelRequest.of_cuda("detect", dtype, bits=1)


def prices(dtype: str, launch: int = 0) -> dict[str, str]:
    """The model's prices for the one architecture, but for launches."""
    found = {}
    for name, numbers in dict(GpuPrices().table(dtype)).items():
        if name.endswith(f"_{ARCH}"):
            assert isinstance(numbers, tuple)
            found[name] = ",".join(map(str, (launch, *numbers[1:])))
    return found


# ---- what lives

Live = Callable[[np.random.Generator, int, int], Array]
PATTERNS: dict[str, Live] = {
    "dead": lambda rng, t, k: np.zeros((t, k), bool),
    "live": lambda rng, t, k: np.ones((t, k), bool),
    "random": lambda rng, t, k: rng.random((t, k)) < 0.03,
    "columns": lambda rng, t, k: np.broadcast_to(rng.random(k) < 0.05, (t, k)),
    "rows": lambda rng, t, k: np.broadcast_to(rng.random((t, 1)) < 0.1, (t, k)),
    "blocks": lambda rng, t, k: np.arange(k) // 64 == rng.integers(0, -(-k // 64), (t, 1)),
    "squares": lambda rng, t, k: (np.arange(k) // 32 + np.arange(t)[:, None] // 32) % 5 == 0,
    "one": lambda rng, t, k: np.arange(t * k).reshape(t, k) == (t * k) // 2,
}


@dataclass(frozen=True)
class Case:
    """A model of one node.

    Args:
        lead: Extents of a in front of k, and of the mask where there is one.
        pattern: What lives of the left operand.
        dtype: Of the operands.
        gather: Rows of the mask are read.
        scatter: They are written.
        ffn: The left operand is the ReLU of a product.
        share: Of the points that live.
        launch: What a launch costs.
    """

    lead: tuple[int, ...]
    pattern: str = "random"
    dtype: str = "float16"
    gather: int = 0
    scatter: int = 0
    ffn: bool = False
    share: float = 0.5
    launch: int = 0

    @property
    def k(self) -> int:
        return SIZES[self.dtype][0]

    @property
    def n(self) -> int:
        return SIZES[self.dtype][1]

    @property
    def listed(self) -> bool:
        return bool(self.gather or self.scatter)

    def numbers(self) -> dict[str, Array]:
        """Small whole numbers, whose products and sums no rounding changes."""
        rng = np.random.default_rng([len(self.lead), *self.lead])

        def whole(most: int, *shape: int) -> Array:
            return rng.integers(-most, most + 1, shape).astype(np.float32)

        live = rng.random(self.lead) < self.share
        t = int(live.sum()) if self.listed else int(np.prod(self.lead))
        rows = t if self.scatter and not self.gather else int(np.prod(self.lead))
        width = INNER if self.ffn else self.k
        a = whole(2, rows, width)
        kept = np.flatnonzero(live) if self.gather else np.arange(rows)
        mask = PATTERNS[self.pattern](rng, t, self.k)
        found = {
            "live": live,
            "w": whole(2, self.k, self.n),
            "bias": whole(3, self.n),
            "residual": whole(3, t, self.n),
        }
        if self.ffn:  # dead neurons have biases that nothing reaches
            found["front"] = whole(1, INNER, self.k) * (rng.random((INNER, self.k)) < 0.1)
            found["inner_bias"] = np.where(mask.any(0) if t else mask.any(), 1.0, -999.0)
            found["inner_bias"] = np.broadcast_to(found["inner_bias"], self.k).astype(np.float32)
        else:
            a[kept] = np.where(mask, a[kept] + (a[kept] == 0), 0)
        lead = (t,) if self.scatter and not self.gather else self.lead
        return found | {"a": a.reshape(*lead, width)}

    def left(self) -> Array:
        """The rows of the left operand."""
        x = self.numbers()
        rows = x["a"].reshape(-1, x["a"].shape[-1]).astype(np.float64)
        if self.gather:
            rows = rows[x["live"].reshape(-1)]
        if self.ffn:
            rows = np.maximum(rows @ x["front"] + x["inner_bias"], 0)
        return rows

    def expected(self) -> Array:
        """By float64, rounded once."""
        x = self.numbers()
        rows = self.left()
        every = np.arange(len(rows), dtype=np.int32)
        c = reference.gather_gemm(
            rows,
            every,
            x["w"].astype(np.float64),
            x["bias"],
            x["residual"].astype(np.float64),
            "none",
        )
        c = c.astype(DTYPES[self.dtype].numpy()).astype(np.float32)
        if not self.scatter:
            return c if self.gather else c.reshape(*self.lead, self.n)
        y = np.zeros((*self.lead, self.n), np.float32)
        y[x["live"]] = c
        return y

    def plan(self) -> Plan:
        """The plan, as the compiler writes it."""
        fields: dict[str, Any] = {
            **{"k": self.k, "n": self.n, "bias": 1, "dtype": self.dtype, "skips": 1},
            **{"gather": self.gather, "scatter": self.scatter},
            **EPILOGUE,
            f"clocks_{ARCH}": dict(clock_table(self.dtype))[f"clocks_{ARCH}"],
            **prices(self.dtype, self.launch),
        }
        if self.ffn:
            fields |= {"inner": INNER, "inner_bias": 1}
        return contract_plan("cuda", **fields)

    def model(self, *, cast: bool = True) -> onnx.ModelProto:
        """The node; with casts from and to float32 around it, or without."""
        x, element = self.numbers(), DTYPES[self.dtype]
        constants = {"b": panels_of(x["w"], element), "bias": padded(x["bias"])}
        weights = ["b", "bias"]
        if self.ffn:
            constants |= {"b1": panels_of(x["front"], element), "bias1": padded(x["inner_bias"])}
            weights = ["b1", "bias1", *weights]
        nodes: list[onnx.NodeProto] = [detect()] if self.listed else []
        read, end = {name: name for name in ("a", "residual")}, "y"
        kind = FLOAT if cast else int(element)
        if cast:
            read, end = {name: f"{name}.cast" for name in read}, "c"
            nodes += [_cast(name, to, element) for name, to in read.items()]
        operands = [
            read["a"],
            *weights,
            read["residual"],
            *(["rows", "live"] if self.listed else []),
        ]
        nodes.append(cuda_node("node", self.plan(), operands, [end]))
        if cast:
            nodes.append(_cast("c", "y", ir.DataType.FLOAT))
        inputs = [(name, kind, x[name].shape) for name in read]
        values = [("c", int(element), None)] if cast else []
        if self.listed:
            inputs.append(("live", BOOL, self.lead))
            values += [ROWS, COORDS, OFFSETS]
        return make_model(nodes, inputs, [("y", kind, None)], values, constants)

    def feeds(self) -> dict[str, Array]:
        """What the model reads."""
        x = self.numbers()
        return {name: x[name] for name in ("a", "residual", *(["live"] if self.listed else []))}


def panels_of(w: Array, element: ir.DataType) -> Array:
    """A right operand as kernels read it."""
    return pack_panels(w.astype(element.numpy()), element.numpy())


def padded(bias: Array) -> Array:
    """As long as all panels."""
    made = np.zeros(panel_count(len(bias)) * PANEL_WIDTH, np.float32)
    made[: len(bias)] = bias
    return made


def _cast(source: str, result: str, to: ir.DataType) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], to=int(to))


# ---- libraries and processes


@pytest.fixture(name="libraries", scope="module")
def _libraries() -> dict[str, Path]:
    """A library for each type; of float32 with the exact kernels alone."""
    without = {"float32": "mma"}
    return {
        dtype: emulated_library(*requests_of(dtype), without=without.get(dtype, ""))
        for dtype in SIZES
    }


def _answer(folder: Path, library: Path, case: Case, given: dict[str, str]) -> Array:
    path = save_with(folder, library, case.model(), "model.onnx")
    run = session(path, given=given | (EXACT if case.dtype == "float32" else {}))
    y = run.run(None, case.feeds())[0]
    assert np.array_equal(y, run.run(None, case.feeds())[0])
    return np.asarray(y)


Answer = Callable[..., Array]


@pytest.fixture(name="answer")
def _answer_fixture(gpu: Call, libraries: dict[str, Path], tmp_path: Path) -> Answer:
    """What a case gives, with options of the provider."""

    def call(case: Case, **given: str) -> Array:
        return np.asarray(gpu(_answer, tmp_path, libraries[case.dtype], case, given))

    return call


# ---- values

FORMS = [
    Case((70,), "random"),
    Case((3, 11), "columns", gather=1, scatter=1),
    Case((140,), "blocks"),
    Case((3, 47), "rows", gather=1),
    Case((70,), "random", "bfloat16"),
    Case((3, 11), "squares", "bfloat16", gather=1, scatter=1),
    Case((70,), "random", "float32"),
    Case((3, 60), "blocks", "float32", scatter=1),
]


@pytest.mark.parametrize("variant", CUTS)
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_each_variant_is_exact(answer: Answer, case: Case, variant: str) -> None:
    np.testing.assert_array_equal(answer(case, variant=variant), case.expected())


@pytest.mark.parametrize("lead", [(0,), (1,), (5,), (16,), (17,), (300,)], ids=str)
@pytest.mark.parametrize("variant", ["tile", "block", "square"])
def test_any_number_of_rows(answer: Answer, lead: tuple[int, ...], variant: str) -> None:
    case = Case(lead)
    np.testing.assert_array_equal(answer(case, variant=variant), case.expected())


@pytest.mark.parametrize("pattern", ["dead", "live", "one"])
@pytest.mark.parametrize("variant", ["tile", "block", "square"])
def test_lists_may_be_empty_and_full(answer: Answer, pattern: str, variant: str) -> None:
    case = Case((40,), pattern)
    np.testing.assert_array_equal(answer(case, variant=variant), case.expected())


@pytest.mark.parametrize(
    "case",
    [
        Case((70,), "columns", ffn=True),
        Case((3, 13), "live", ffn=True, gather=1, scatter=1),
        Case((1, 9), "dead", ffn=True, scatter=1, share=1.0),
        Case((2, 4), ffn=True, gather=1, share=0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["", *CUTS])
def test_a_product_in_front(answer: Answer, case: Case, variant: str) -> None:
    np.testing.assert_array_equal(answer(case, variant=variant), case.expected())


# ---- what is chosen


def _chosen(folder: Path, library: Path, case: Case, given: dict[str, str]) -> list[dict[str, Any]]:
    """What a run tells of its choices; the answer is compared as well."""
    trace = folder / f"{case.pattern}.trace"
    path = save_with(folder, library, case.model(), f"{case.pattern}.onnx")
    y = session(path, trace=trace, given=given).run(None, case.feeds())[0]
    np.testing.assert_array_equal(y, case.expected())
    return told(trace)


def predicted(case: Case) -> dict[str, float]:
    """What each variant should be said to take, microseconds, by the table in Python."""
    rows, arch = case.left(), CUDA_ARCHS[ARCH]
    width = block_width(case.dtype)
    totals = detected(rows, width).totals(parts_of(len(rows), case.k))
    found = {}
    for offer in offers_of(case.dtype):
        for summed in SUMMED_ROWS if offer.variant.kind == "block" else (0,):
            line = line_of(offer.variant, offer.tile, case.dtype, MULTIPROCESSORS, summed)
            sizes, blocks = (len(rows), case.k, case.n), block_count(case.k, width)
            amounts = features_of(line, totals, sizes, blocks)
            numbers = (case.launch, *prices_of(offer, case.dtype, arch)[1:])
            name = offer.name + (f"_r{summed}" if summed else "")
            found[name] = sum(a * p for a, p in zip(amounts, numbers, strict=True)) / 1e9
    return found


@pytest.mark.parametrize(
    ("pattern", "rows", "wanted"),
    [
        ("dead", 70, "block64"),  # not even half a step
        ("live", 70, "dense"),
        ("columns", 70, "tile32"),
        ("columns", 9, "tile16"),
        ("blocks", 300, "block64"),
        ("squares", 300, "square32"),
    ],
)
def test_the_device_chooses_by_what_lives(
    gpu: Call, libraries: dict[str, Path], tmp_path: Path, pattern: str, rows: int, wanted: str
) -> None:
    case = Case((rows,), pattern)
    (choice, moved) = gpu(_chosen, tmp_path, libraries["float16"], case, {})
    assert choice["chosen"].split("_")[0] == wanted
    assert (choice["rows"], choice["k"], choice["n"]) == (rows, case.k, case.n)
    assert choice["counts"]["elements"] == np.count_nonzero(case.left())
    assert moved["downloads"] == 2  # only since somebody wants to know
    want = predicted(case)
    for name, candidate in choice["candidates"].items():
        assert candidate["predicted_us"] == pytest.approx(want[name], rel=1e-4, abs=2e-3), name


def test_nothing_is_looked_for_where_all_takes_less_than_launches(
    gpu: Call, libraries: dict[str, Path], tmp_path: Path
) -> None:
    """Dense takes 3 us at most: as long as launches are, or not."""
    few, many = Case((70,), "columns", launch=10**9), Case((70,), "columns", launch=10**6)
    (told_few, moved) = gpu(_chosen, tmp_path / "few", libraries["float16"], few, {})
    assert told_few["chosen"].startswith("dense_") and not told_few["counts"]
    assert moved["downloads"] == 0
    (told_many, _) = gpu(_chosen, tmp_path / "many", libraries["float16"], many, {})
    assert told_many["chosen"].startswith("tile32_") and told_many["counts"]
    (forced, _) = gpu(_chosen, tmp_path / "forced", libraries["float16"], few, {"variant": "tile"})
    assert forced["chosen"].startswith("tile32_") and forced["counts"]


# ---- what a run does


def _counted(folder: Path, library: Path, case: Case, given: dict[str, str]) -> dict[str, int]:
    """What the driver counts in a second run, all of whose tensors stay on the device."""
    path = save_with(folder, library, case.model(cast=False), f"{case.ffn}.onnx")
    run = session(path, given=given)
    binding = run.io_binding()
    x = case.feeds()
    for name in ("a", "residual"):
        value = on_device(x[name].astype(DTYPES[case.dtype].numpy()))
        binding.bind_ortvalue_input(name, value)
    if case.listed:
        binding.bind_cpu_input("live", x["live"])
    bind_on_device(binding, "y")
    driver = FakeDriver()
    run.run_with_iobinding(binding)
    with driver.counted() as counts:
        run.run_with_iobinding(binding)
    y = binding.get_outputs()[0].numpy().astype(np.float32)
    np.testing.assert_array_equal(y, case.expected())
    return counts


@pytest.mark.parametrize(
    ("case", "given", "launches"),
    [
        (Case((70,)), {}, 7),
        (Case((70,)), {"variant": "dense"}, 1),
        (Case((70,), launch=10**9), {}, 1),
        (Case((3, 13), "columns", ffn=True), {}, 8),
        (Case((3, 13), "columns", ffn=True), {"variant": "dense"}, 2),
        (Case((3, 13), "rows", gather=1, scatter=1), {"variant": "block"}, 7),
    ],
    ids=str,
)
def test_nobody_waits(
    gpu: Call,
    libraries: dict[str, Path],
    tmp_path: Path,
    case: Case,
    given: dict[str, str],
    launches: int,
) -> None:
    """Detect, choose, lists, four products; the list of rows and the table are there already. A run
    ends with one wait of ONNX Runtime, as one with a single launch does.
    """
    counts = gpu(_counted, tmp_path, libraries["float16"], case, given)
    names = ("launches", "copies_up", "copies_down", "copies_across", "waits", "fills")
    assert [counts[name] for name in names] == [launches, 0, 0, 0, 1, case.scatter]


# ---- errors


def _errors(folder: Path, library: Path) -> None:
    case = Case((9,))

    def text(old: str, new: str, **given: str) -> str:
        made = case.model()
        for attribute in (a for node in made.graph.node for a in node.attribute):
            if attribute.name == "ep_cache_context":
                found = attribute.s.decode()
                assert old in found
                attribute.s = found.replace(old, new).encode()
        return failure(lambda: session(save_with(folder, library, made, "m.onnx"), given=given))

    price = f"price_tile32_mma32x128_{ARCH}"
    assert f"plan: key '{price}' is missing" in text(f"{price}=", "price_tile32_mma32x128_sm_90=")
    assert f"plan: expected {price} as 4 numbers" in text(f"{price}=0,", f"{price}=")
    assert "plan: unknown key 'price_row'" in text("residual=1", "residual=1\nprice_row=1,1,1,1")
    assert "plan: expected input_relu=0 for a GPU, got '1'" in text("input_relu=0", "input_relu=1")
    assert "expected variant dense, tile, block or square, got 'tile8'" in text(
        "", "", variant="tile8"
    )
    assert "expected kernel 'detect_loose_f16_cuda' in 'kernels.so', got none" in text(
        "detect:detect_f16", "detect:detect_loose_f16"
    )


def test_what_is_wrong_is_told(gpu: Call, libraries: dict[str, Path], tmp_path: Path) -> None:
    gpu(_errors, tmp_path, libraries["float16"])


# ---- from a model to its answer


def _compiled_answer(folder: Path, feeds: dict[str, Array], given: dict[str, str]) -> Array:
    run = session(folder / "model.cuda.onnx", given=given)
    return np.asarray(run.run(None, feeds)[0])


def test_feed_forward_blocks_of_a_decoder(gpu: Call, tmp_path: Path) -> None:
    config = OptConfig(layers=1, hidden=128, heads=2, ffn=512, vocab=50)
    source = half(opt_ffn(config, np.random.default_rng(0)))
    with emulator_compiles(tmp_path / "cache"):
        compiled = pitc.compile(source, f"cuda:{ARCH}", output=tmp_path / "m.pitc")
    assert compiled.manifest.pit_nodes == 1
    x = np.random.default_rng(1).standard_normal((2, 19, 128)).astype(np.float16)
    feeds = {"hidden_state": x}
    plain = onnxruntime.InferenceSession(
        source.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = np.asarray(plain.run(None, feeds)[0]).astype(np.float32)
    for variant in ("", *CUTS):
        given = {"variant": variant}
        y = gpu(_compiled_answer, tmp_path / "m.pitc", feeds, given).astype(np.float32)
        np.testing.assert_allclose(y, want, rtol=4e-3, atol=4e-3)
