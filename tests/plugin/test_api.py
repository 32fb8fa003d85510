"""The Python API."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import pitc
from pitc import api
from pitc.artifact.manifest import CUDA_MODEL, FALLBACK, FILES, MODEL
from pitc.check.feeds import cases, input_specs
from pitc.host.machine import cpu_level
from pitc.session import run_session

RTOL = 1e-5


def reference(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return run_session(session, feeds)


def bert_feeds(path: Path, pattern: str) -> dict[str, np.ndarray]:
    model, _ = api.import_model(path)
    specs = input_specs(model)
    return next(c for c in cases(specs, None, "attention_mask") if c.pattern == pattern).feeds


def distance(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape and got.dtype == want.dtype
    return float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))


def test_the_public_names() -> None:
    assert set(pitc.__all__) <= set(dir(pitc))
    for name in pitc.__all__:
        assert getattr(pitc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = pitc.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", ["full", "right", "left", "holes", "empty"])
def test_live_tokens_equal_onnx_runtime_and_padded_ones_are_0(
    bert_path: Path, bert_artifact: Path, pattern: str
) -> None:
    feeds = bert_feeds(bert_path, pattern)
    live = feeds["attention_mask"] != 0
    model = pitc.load(bert_artifact)
    assert model.manifest.pit_nodes > 0
    (got,), (want,) = model.run(feeds).values(), reference(bert_path, feeds).values()
    assert distance(got[live], want[live]) < RTOL
    assert not got[~live].any()


@pytest.mark.parametrize("pattern", ["full", "right", "holes"])
def test_without_padding_every_element_equals_onnx_runtime(bert_path: Path, pattern: str) -> None:
    feeds = bert_feeds(bert_path, pattern)
    (got,), (want,) = (
        pitc.compile(bert_path).run(feeds).values(),
        reference(bert_path, feeds).values(),
    )
    assert distance(got, want) < RTOL


def test_a_model_in_memory_gives_the_same_artifact(bert_path: Path, bert_artifact: Path) -> None:
    model = pitc.compile(onnx.load(bert_path), padding="attention_mask")
    for name in (MODEL, FALLBACK, "weights.bin", "kernels.so"):
        assert (model.path / name).read_bytes() == (bert_artifact / name).read_bytes()


def test_artifacts_do_not_depend_on_the_process(
    bert_path: Path, bert_artifact: Path, tmp_path: Path
) -> None:
    """Another hash seed, folder and time give the same bytes."""
    copy = tmp_path / "elsewhere" / "model.onnx"
    copy.parent.mkdir()
    shutil.copyfile(bert_path, copy)
    words = ["compile", "-q", copy, "-o", tmp_path / "b.pitc", "--padding", "attention_mask"]
    env = os.environ | {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-m", "pitc", *map(str, words)], check=True, env=env)
    names = {p.name for p in bert_artifact.iterdir()}
    assert names == set(FILES) - {CUDA_MODEL}
    for name in names:
        assert (tmp_path / "b.pitc" / name).read_bytes() == (bert_artifact / name).read_bytes()


def test_a_model_without_sparsity_compiles_to_itself(mlp_path: Path) -> None:
    model = pitc.compile(mlp_path)
    assert model.manifest.pit_nodes == 0
    assert model.manifest.kernels is None
    assert not (model.path / "kernels.so").exists()
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)}
    np.testing.assert_array_equal(model.run(feeds)["y"], reference(mlp_path, feeds)["y"])


def test_the_input_is_not_touched(bert_path: Path) -> None:
    before = bert_path.read_bytes(), bert_path.stat().st_mtime_ns
    pitc.compile(bert_path, padding="attention_mask")
    assert (bert_path.read_bytes(), bert_path.stat().st_mtime_ns) == before


def test_a_model_in_memory_is_not_touched(bert_path: Path) -> None:
    proto = onnx.load(bert_path)
    before = proto.SerializeToString(deterministic=True)
    pitc.compile(proto, padding="attention_mask")
    assert proto.SerializeToString(deterministic=True) == before


def test_an_unsaved_model_vanishes_with_its_object(mlp_path: Path, tmp_path: Path) -> None:
    model = pitc.compile(mlp_path)
    folder, session = model.path, model.session()
    assert set(p.name for p in folder.iterdir()) <= set(FILES)
    model.save(tmp_path / "kept.pitc")
    del model
    gc.collect()
    assert not folder.parent.exists()
    feeds = {"x": np.ones((1, 16), np.float32)}
    want = pitc.load(tmp_path / "kept.pitc").run(feeds)["y"]
    np.testing.assert_array_equal(session.run(None, feeds)[0], want)


def test_a_failing_compile_leaves_no_temporary_folder(
    mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(api, "_write", broken)
    with pytest.raises(pitc.MachineError, match="No space left"):
        pitc.compile(mlp_path)
    with pytest.raises(pitc.MachineError, match="No space left"):
        pitc.compile(mlp_path, output=tmp_path / "a.pitc")
    assert not list(scratch.iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"mlp.onnx", "scratch"}


def test_progress_names_every_stage_in_order(mlp_path: Path) -> None:
    seen: list[str] = []
    model = pitc.compile(mlp_path, progress=seen.append)
    assert tuple(seen) == api.stages()
    assert set(model.report.stages_ms) == set(seen)


def test_many_threads_share_one_model(bert_path: Path, bert_artifact: Path) -> None:
    model = pitc.load(bert_artifact)
    feeds = [bert_feeds(bert_path, p) for p in ("right", "left", "holes", "full")]
    want = [next(iter(model.run(f).values())) for f in feeds]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(10):
            got = next(iter(model.run(feeds[i % 4]).values()))
            if not np.array_equal(got, want[i % 4]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("inputs", [{}, {"x": 1.0, "z": 2}, {"x": np.ones(16, np.float32)}])
def test_wrong_inputs_are_usage_errors(mlp_path: Path, inputs: dict[str, object]) -> None:
    with pytest.raises(pitc.UsageError):
        pitc.compile(mlp_path).run(inputs)


def test_messages_about_inputs(mlp_path: Path) -> None:
    model = pitc.compile(mlp_path)
    x = np.ones((2, 16), np.float32)
    for inputs, text in (
        ({}, "inputs are missing: x"),
        ({"y": x}, "input 'y' is not of the model (it has x)"),
        ({"x": x.astype(np.float64)}, "input 'x': expected float32, got float64"),
        ({"x": x[:, :8]}, "input 'x': expected shape ['batch', 16], got [2, 8]"),
    ):
        with pytest.raises(pitc.UsageError) as caught:
            model.run(inputs)
        assert str(caught.value) == text
    with pytest.raises(pitc.UsageError, match="output 'z'"):
        model.run({"x": x}, ["z"])
    assert list(model.run({"x": x}, ["y"])) == ["y"]


@pytest.mark.parametrize("padding", ["attention_maks", "nothing", ""])
def test_unknown_padding_lists_the_candidates(bert_path: Path, padding: str) -> None:
    with pytest.raises(pitc.UsageError, match="attention_mask"):
        pitc.compile(bert_path, padding=padding)


def test_unknown_targets(bert_path: Path) -> None:
    for target in ("gpu", "cuda:sm_91", ""):
        with pytest.raises(pitc.UsageError, match="is not one of auto, cpu"):
            pitc.compile(bert_path, target=target)


@pytest.mark.parametrize("target", ["cpu:v3", "cpu:v4"])
def test_single_levels(bert_path: Path, target: str) -> None:
    model = pitc.compile(bert_path, target=target, padding="attention_mask")
    kernels = model.manifest.kernels
    assert kernels is not None
    assert kernels.levels == [target[-2:]]
    feeds = bert_feeds(bert_path, "right")
    live = feeds["attention_mask"] != 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pitc.PitcWarning)
        (got,), (want,) = model.run(feeds).values(), reference(bert_path, feeds).values()
    assert distance(got[live], want[live]) < RTOL


def test_a_cpu_without_a_level_runs_the_ordinary_graph(
    bert_path: Path, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitc.artifact.check.cpu_level", lambda: None)
    model = pitc.load(bert_artifact)
    assert model.graph.name == FALLBACK
    feeds = bert_feeds(bert_path, "right")
    with pytest.warns(pitc.PitcWarning, match="ordinary graph"):
        (got,) = model.run(feeds).values()
    (want,) = reference(bert_path, feeds).values()
    np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(cpu_level() != "v4", reason="needs a CPU with AVX-512")
def test_the_levels_agree(bert_path: Path, bert_artifact: Path) -> None:
    from pitc.runtime.library import make_session

    feeds = bert_feeds(bert_path, "right")
    found = [
        run_session(make_session(bert_artifact / MODEL, None, {"cpu_level": level}), feeds)
        for level in ("v3", "v4")
    ]
    for name, array in found[0].items():
        assert distance(array, found[1][name]) < RTOL


def test_a_damaged_artifact_is_not_loaded(bert_artifact: Path, tmp_path: Path) -> None:
    copy = pitc.load(bert_artifact).save(tmp_path / "copy.pitc")
    (copy / MODEL).write_bytes(b"")
    with pytest.raises(pitc.ArtifactError, match=r"damaged: model\.onnx: expected .*pitc compile"):
        pitc.load(copy)


def test_existing_outputs(mlp_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.pitc"
    pitc.compile(mlp_path, output=output)
    with pytest.raises(pitc.UsageError, match="exists"):
        pitc.compile(mlp_path, output=output)
    model = pitc.compile(mlp_path, output=output, force=True)
    assert model.path == output
    with pytest.raises(pitc.UsageError, match="exists"):
        model.save(output)


def test_the_provider_is_registered_once() -> None:
    assert pitc.register() == pitc.get_ep_name() == "PitExecutionProvider"
    assert pitc.register() == "PitExecutionProvider"
    assert pitc.get_library_path().is_file()


def test_options_of_the_session_are_the_users(mlp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = pitc.compile(mlp_path).session(options)
    assert session.get_session_options().intra_op_num_threads == 1


def test_options_that_a_compiled_model_cannot_have(
    bert_artifact: Path, mlp_path: Path, tmp_path: Path
) -> None:
    """The option is named, and nothing else is tried with it: the source graph would be saved."""
    saved = tmp_path / "optimised.onnx"

    def options(*, save: bool) -> onnxruntime.SessionOptions:
        made = onnxruntime.SessionOptions()
        made.log_severity_level = 4
        if save:
            made.optimized_model_filepath = str(saved)
        else:
            made.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        return made

    model, plain = pitc.load(bert_artifact), pitc.compile(mlp_path)
    text = r"session option 'optimized_model_filepath': .* \(leave the option out; model\.onnx"
    with pytest.raises(pitc.UsageError, match=text):
        model.session(options(save=True))
    assert not saved.exists()
    text = r"session option 'session\.disable_cpu_ep_fallback': ordinary nodes .*leave the option"
    for each in (model, plain):
        with pytest.raises(pitc.UsageError, match=text) as caught:
            each.session(options(save=False))
        assert "custom-ops" not in str(caught.value)
    plain.session(options(save=True))  # it has no node of ours, so ONNX Runtime can
    assert saved.exists()
