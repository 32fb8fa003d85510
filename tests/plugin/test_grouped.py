"""grouped in a session: rows by the matrices of their groups, whatever groups there are."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

import pitc
from models.experts import FORMS, ExpertsConfig, experts, reference
from models.mixtral import MixtralConfig, mixtral
from pitc.codegen.build.cache import kernel_cache
from pitc.codegen.build.library import build_kernels
from pitc.host.machine import bfloat16_unit
from pitc.ir.kernel import KernelRequest
from pitc.ir.panels import pack_panels
from pitc.measure.trace import traced_session
from pitc.measure.trace_lines import read_lines
from tests.codegen_kernels import LEVELS
from tests.plan_text import Plan
from tests.runtime_support import (
    FLOAT,
    Array,
    Value,
    answers_on_eight_threads,
    make_model,
    pit_node,
    quiet_options,
    save,
    session,
    use_built_provider,
)

pytest.importorskip("tvm")
provider = pytest.fixture(scope="module", autouse=True)(use_built_provider)

K, N = 70, 100
Make = Callable[..., Any]


def model(groups: int) -> onnx.ModelProto:
    kernel = f"dense:gather_gemm_k{K}_n{N}_none"
    fields = {"dtype": "float32", "groups": groups, "k": K, "n": N, "skips": 0}
    plan = Plan("grouped", tuple((fields | {"kernels": kernel, "library": "kernels.so"}).items()))
    inputs: list[Value] = [
        ("a", FLOAT, [None] * 4),
        ("g", TensorProto.INT64, [None] * 2),
        ("b", FLOAT, [None] * 3),
    ]
    return make_model(
        [pit_node("n", plan, ["a", "g", "b"], ["c"])], inputs, [("c", FLOAT, [None] * 4)]
    )


@pytest.fixture(name="make", scope="module")
def _make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    folder: Path = tmp_path_factory.mktemp("grouped")
    request = KernelRequest.of("gather_gemm", k=K, n=N, activation="none", residual=0)
    build_kernels([request], LEVELS, folder / "kernels.so", cache=kernel_cache())

    def make(groups: int, threads: int = 1) -> Any:
        path = save(folder, model(groups), f"m{groups}.onnx")
        options = quiet_options()
        options.intra_op_num_threads = threads
        return session(path, options=options)

    yield make


def feeds(
    groups: int, t: int, j: int, m: int, *, shared: bool, of: Array | None = None
) -> dict[str, Array]:
    rng = np.random.default_rng(t + j)
    drawn = rng.integers(-groups, groups, (t, j)) if of is None else np.resize(of, (t, j))
    w = rng.normal(0, K**-0.5, (groups, K, N)).astype(np.float32)
    a = rng.normal(size=(t, 1 if shared else j, m, K)).astype(np.float32)
    return {"a": a, "g": drawn, "b": np.concatenate([pack_panels(one) for one in w])}


def want(given: dict[str, Array], groups: int) -> Array:
    panels = given["b"].reshape(groups, -1, K, 64)
    w = panels.transpose(0, 2, 1, 3).reshape(groups, K, -1)[..., :N].astype(np.float64)
    return given["a"].astype(np.float64) @ w[given["g"]]


SHAPES = [(0, 2, 1), (3, 0, 1), (3, 2, 0), (1, 1, 1), (5, 3, 2), (130, 2, 1), (40, 1, 9)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("groups", [1, 3, 512])
def test_rows_are_multiplied_by_their_matrix(make: Make, groups: int, shared: bool) -> None:
    run = make(groups)
    for shape in SHAPES:
        given = feeds(groups, *shape, shared=shared)
        (got,) = run.run(None, given)
        np.testing.assert_allclose(got, want(given, groups), rtol=1e-5, atol=1e-5)


def test_all_rows_of_one_group_and_none_of_others(make: Make) -> None:
    """A matrix of which no row is asked is not read: it may hold NaN."""
    given = feeds(3, 200, 2, 1, shared=True, of=np.array([1]))
    given["b"][[0, 1, 4, 5]] = np.nan
    (got,) = make(3).run(None, given)
    np.testing.assert_allclose(got, want(given, 3), rtol=1e-5, atol=1e-5)


def test_bits_do_not_depend_on_threads_or_neighbours(make: Make) -> None:
    given = [feeds(5, t, 2, 1, shared=True) for t in (3, 300, 900)]
    one, two = (answers_on_eight_threads(make(5, threads), given, 3) for threads in (1, 2))
    for x, y in zip(one, two, strict=True):
        np.testing.assert_array_equal(x[0], y[0])
    alone = dict(given[1], a=given[1]["a"][7:8], g=given[1]["g"][7:8])
    np.testing.assert_array_equal(make(5).run(None, alone)[0][0], one[1][0][7])


@pytest.mark.parametrize("wrong", [5, -6, 1 << 40])
def test_a_group_out_of_range_is_an_error(make: Make, wrong: int) -> None:
    given = feeds(5, 4, 2, 1, shared=True)
    given["g"][2, 1] = wrong
    with pytest.raises(Exception, match=f"expected groups from -5 to 4, got {wrong} at 5"):
        make(5).run(None, given)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("a", (4, 3, 1, K), "expected a as float32"),
        ("a", (4, 2, 1, K + 1), "expected a as float32"),
        ("g", (5, 2), "expected group as int64"),
        ("b", (9, K, 64), "expected b as float32"),
    ],
)
def test_wrong_operands_are_told(make: Make, name: str, shape: tuple[int, ...], text: str) -> None:
    given = feeds(5, 4, 2, 1, shared=False)
    given[name] = np.zeros(shape, given[name].dtype)
    with pytest.raises(Exception, match=text):
        make(5).run(None, given)


@pytest.mark.parametrize("form", [*FORMS, "operator", "plus"])
def test_layers_of_experts(form: str) -> None:
    """Compiled, as the float64 reference says: of no token, one, and many."""
    config = ExpertsConfig(form, experts=8, hidden=96, ffn=192, gated=True, bias=True)
    proto = experts(config, np.random.default_rng(3))
    plain = "plus" if form == "plus" else "looked_up"  # the same weights, by names
    drawn = experts(replace(config, form=plain), np.random.default_rng(3))
    compiled = pitc.compile(proto, suggest=False)
    assert [r.lowering for r in compiled.report.nodes].count("grouped") == 2
    for t in (1, 65) if "labels" in form else (0, 1, 65):  # an Einsum of none ends the process
        x = np.random.default_rng(t).normal(size=(t, 96)).astype(np.float32)
        got = compiled.run({"x": x})["y"]
        np.testing.assert_allclose(got, reference(drawn, config, x), rtol=1e-4, atol=1e-5)


VARIANTS = ("dense", "row", "tile8", "block16", "block64")


@pytest.mark.parametrize("form", [*FORMS, "loop", "index_add"])
def test_experts_of_all_layers_run_grouped(form: str) -> None:
    """What one layer leaves out reaches the router of the next one, as zeros. Of (token, expert)
    few live, so these rows come before those of tokens, and their sums are rows that are added.
    """
    sizes = ExpertsConfig(form, experts=8, hidden=128, ffn=256, top=2, gated=True)
    config = MixtralConfig(sizes, layers=2, heads=4, vocab=50)
    proto = mixtral(config, np.random.default_rng(0))
    compiled = pitc.compile(proto, padding="attention_mask", suggest=False)
    found = [r.lowering for r in compiled.report.nodes]
    assert found.count("grouped") == 2 * config.layers
    assert found.count("add_rows") == (0 if "looked" in form else config.layers)
    source, rng = ort.InferenceSession(proto.SerializeToString()), np.random.default_rng(1)
    for b, s, share in ((3, 17, 0.4), (1, 1, 1.0), (2, 9, 0.0)):
        mask = rng.random((b, s)) < share
        feeds = {"input_ids": rng.integers(0, 50, (b, s)), "attention_mask": mask.astype(np.int64)}
        want = np.asarray(source.run(None, feeds)[0])
        got = compiled.run(feeds)["last_hidden_state"]
        np.testing.assert_allclose(got[mask], want[mask], rtol=0, atol=1e-4)


def sparse_experts(precision: str = "float32") -> pitc.CompiledModel:
    """Most neurons are 0, those of one expert all."""
    config = ExpertsConfig("looked_up", experts=8, hidden=96, ffn=512, bias=True)
    proto = experts(config, np.random.default_rng(3))
    (bias,) = [w for w in proto.graph.initializer if w.name == "up.bias"]
    numbers = numpy_helper.to_array(bias) - 1.5
    numbers[2] = -100
    bias.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), bias.name))
    compiled = pitc.compile(proto, suggest=False, precision=precision)
    found = [r.sparse for r in compiled.report.nodes if r.lowering == "grouped"]
    assert found[0] == "" and found[1].startswith("operand 0 is 0 where relu")
    return compiled


def at_variant(compiled: pitc.CompiledModel, variant: str, threads: int = 1) -> Any:
    options = quiet_options()
    options.intra_op_num_threads = threads
    if bfloat16_unit() == "AMX":  # a matrix unit, which has no lists, sums otherwise
        options.add_session_config_entry("ep.pitexecutionprovider.cpu_level", "v4_bf16")
    if variant:
        options.add_session_config_entry("ep.pitexecutionprovider.variant", variant)
    return compiled.session(options)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_zeros_of_rows_are_skipped_group_by_group(precision: str) -> None:
    """With the same bits as without, also beside NaN and infinity."""
    compiled = sparse_experts(precision)
    rng = np.random.default_rng(5)
    for t in (0, 1, 65, 700):
        x = rng.normal(size=(t, 96)).astype(np.float32)
        x[2:4, 0] = [np.nan, np.inf][: max(t - 2, 0)]
        wanted = at_variant(compiled, "dense").run(None, {"x": x})[0]
        assert np.isfinite(np.delete(wanted, (2, 3), 0) if t > 2 else wanted).all()
        for variant in VARIANTS[1:]:
            for threads in (1, 4):
                (got,) = at_variant(compiled, variant, threads).run(None, {"x": x})
                np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(at_variant(compiled, "").run(None, {"x": x})[0], wanted)


def test_each_group_that_is_looked_at_is_traced(tmp_path: Path) -> None:
    x = np.random.default_rng(6).normal(size=(60, 96)).astype(np.float32)
    traced_session(sparse_experts(), path := tmp_path / "trace").run(None, {"x": x})
    found = read_lines(path)
    rows = [decision.rows for decision in found.products]
    assert len(rows) == found.groups[1].hit_groups and sum(rows) == 120
