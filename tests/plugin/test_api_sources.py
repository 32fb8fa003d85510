"""What `compile`, `run`, `load` and pickle take, and the provider by its name."""

import copy
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc.artifact.manifest import FALLBACK, MODEL
from pitc.importer import memory

FILES = (MODEL, FALLBACK, "weights.bin", "kernels.so")
IDS = np.array([[11, 12, 13, 14], [21, 22, 0, 0]])
FEEDS = {"input_ids": IDS, "attention_mask": (IDS != 0).astype(np.int64), "token_type_ids": 0 * IDS}


def contents(model: pitc.CompiledModel) -> dict[str, bytes]:
    return {name: (model.path / name).read_bytes() for name in FILES}


# --- compile -------------------------------------------------------------------------------------


def test_bytes_and_graphs_give_the_artifact_of_the_file(
    bert_path: Path, bert_artifact: Path
) -> None:
    want = contents(pitc.load(bert_artifact))
    graph = ir.load(bert_path)
    before = ir.to_proto(graph).SerializeToString(deterministic=True)
    for model in (bert_path.read_bytes(), graph):
        assert contents(pitc.compile(model, padding="attention_mask")) == want
    assert ir.to_proto(graph).SerializeToString(deterministic=True) == before
    (report,) = pitc.explain(graph, padding="attention_mask").values()
    assert report.model == "bert.onnx"  # the graph's name


def test_large_protos_are_never_one_message(
    bert_path: Path, bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit far below 2 GB: the way that a model over 2 GB takes."""
    monkeypatch.setattr(memory, "PROTO_BYTES", memory._REST + 1000)
    proto = onnx.load(bert_path)
    before = proto.SerializeToString(deterministic=True)
    with memory.imported_from(proto) as file:
        assert isinstance(file, Path) and file.name == "bert.onnx"
        assert file.stat().st_size < len(before) / 4
        folder = file.parent
    assert not folder.exists()
    assert contents(pitc.compile(proto, padding="attention_mask")) == contents(
        pitc.load(bert_artifact)
    )
    assert proto.SerializeToString(deterministic=True) == before


def _tensors() -> list[onnx.TensorProto]:
    """Weights in every way in which a proto holds them, each over 1 KB, and what stays in it."""
    values = np.arange(-300, 300).reshape(20, 30)
    halves = values.astype(np.float16)
    bits = [int(v) for v in halves.reshape(-1).view(np.uint16)]
    return [
        numpy_helper.from_array(values.astype(np.float32), "raw"),
        helper.make_tensor("floats", TensorProto.FLOAT, (20, 30), values.reshape(-1)),
        helper.make_tensor("doubles", TensorProto.DOUBLE, (20, 30), values.reshape(-1)),
        helper.make_tensor("longs", TensorProto.INT64, (20, 30), values.reshape(-1)),
        helper.make_tensor("bytes", TensorProto.INT8, (50, 40), np.arange(2000) % 100),
        onnx.TensorProto(name="halves", data_type=10, dims=(20, 30), int32_data=bits),
        onnx.TensorProto(name="texts", data_type=8, dims=(300,), string_data=[b"text"] * 300),
        helper.make_tensor("small", TensorProto.FLOAT, (2,), [1.0, 2.0]),
    ]


def test_every_kind_of_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = _tensors()
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}.out"]) for t in weights]
    outputs = [helper.make_tensor_value_info(f"{t.name}.out", t.data_type, t.dims) for t in weights]
    graph = helper.make_graph(nodes, "a/b c", [], outputs, weights, doc_string="kept")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto.producer_name = "somebody"
    monkeypatch.setattr(memory, "PROTO_BYTES", memory._REST)
    with memory.imported_from(proto) as file:
        assert isinstance(file, Path) and file.name == "a_b_c.onnx"
        slim = onnx.load(file, load_external_data=False)
        found = {t.name for t in slim.graph.initializer if t.data_location == TensorProto.EXTERNAL}
        assert found == {"raw", "floats", "doubles", "longs", "bytes", "halves"}
        whole = onnx.load(file)
    assert (whole.producer_name, whole.graph.doc_string) == ("somebody", "kept")
    assert list(whole.graph.node) == nodes and list(whole.graph.output) == outputs
    for got, want in zip(whole.graph.initializer, weights, strict=True):
        arrays = numpy_helper.to_array(got), numpy_helper.to_array(want)
        assert arrays[0].dtype == arrays[1].dtype and (arrays[0] == arrays[1]).all()


@pytest.mark.parametrize("large", [False, True])
def test_defects_of_models_in_memory(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))
    node = helper.make_node("Relu", ["nothing"], ["y"], name="first")
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    proto = helper.make_model(helper.make_graph([node], "g", [], [value], [weight]), ir_version=8)
    if large:
        monkeypatch.setattr(memory, "PROTO_BYTES", memory._REST)
    with pytest.raises(pitc.ModelError) as caught:
        pitc.compile(proto)
    text = str(caught.value)
    assert "nothing" in text and "pitc-" not in text and caught.value.path is None


def test_what_is_no_model() -> None:
    for model in (3, None, [1]):
        with pytest.raises(pitc.UsageError, match=r"is not an ONNX model .it takes a path, bytes"):
            pitc.compile(model)  # type: ignore[arg-type]
    with pytest.raises(pitc.ModelError, match="these 3 bytes are not an ONNX model"):
        pitc.compile(b"abc")


# --- run -----------------------------------------------------------------------------------------


def test_inputs_by_position(bert_artifact: Path) -> None:
    model = pitc.load(bert_artifact)
    (want,) = model.run(FEEDS).values()
    for inputs in (list(FEEDS.values()), tuple(FEEDS.values())):
        np.testing.assert_array_equal(next(iter(model.run(inputs).values())), want)
    wrong = (list(FEEDS.values())[:2], [], (*FEEDS.values(), IDS), IDS, None, "input_ids")
    got = ("list of 2", "list of 0", "tuple of 4", "ndarray", "NoneType", "str")
    for inputs, text in zip(wrong, got, strict=True):
        with pytest.raises(pitc.UsageError) as caught:
            model.run(inputs)  # type: ignore[arg-type]
        names = "'input_ids', 'attention_mask', 'token_type_ids'"
        want_text = f"expected inputs by name, or a list of 3 in the order {names}; got {text}"
        assert str(caught.value) == want_text


# --- pickle, copy, threads, providers ------------------------------------------------------------


def test_models_are_pickled_by_their_path(
    mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pitc.compile(mlp_path)
    with pytest.raises(pitc.UsageError, match=r"temporary folder.*save it"):
        pickle.dumps(model)
    monkeypatch.chdir(tmp_path)
    model.save("kept.pitc")
    loaded = pitc.load("kept.pitc", threads=2, providers=["cpu"])
    monkeypatch.chdir("/")
    for one, threads in ((model, 0), (loaded, 2)):
        again = pickle.loads(pickle.dumps(one))
        assert again.path == tmp_path / "kept.pitc"
        assert again.session().get_session_options().intra_op_num_threads == threads
        assert copy.copy(one) is one and copy.deepcopy(one) is one
    text = f"import pickle, sys; print(pickle.load(open({str(tmp_path / 'p')!r}, 'rb')).path)"
    (tmp_path / "p").write_bytes(pickle.dumps(model))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "kept.pitc")
    (tmp_path / "kept.pitc" / MODEL).write_bytes(b"")
    with pytest.raises(pitc.ArtifactError, match="damaged"):
        pickle.loads((tmp_path / "p").read_bytes())


def test_errors_can_be_pickled() -> None:
    """Actors and pools send them home."""
    error = pitc.UsageError("wrong", path="model.onnx", node="n", hint="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.hint == "mend it" and again.message == "wrong"


def test_threads(bert_artifact: Path) -> None:
    model = pitc.load(bert_artifact, threads=2)
    options = [model.session(), model.session(threads=1), model.session(quiet())]
    assert [s.get_session_options().intra_op_num_threads for s in options] == [2, 1, 0]
    for threads in (0, -1):
        with pytest.raises(pitc.UsageError, match="1 or more"):
            model.session(threads=threads)
    with pytest.raises(pitc.UsageError, match="intra_op_num_threads"):
        model.session(quiet(), threads=1)
    with pytest.raises(pitc.UsageError, match="providers"):
        pitc.load(bert_artifact, providers=["gpu"]).session()  # type: ignore[list-item]


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def test_the_provider_by_its_name(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(pitc.register())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["PitExecutionProvider"] * 4
    assert "PitExecutionProvider" in onnxruntime.get_available_providers()
    session = onnxruntime.InferenceSession(
        bert_artifact / MODEL, quiet(), providers=["PitExecutionProvider"]
    )
    assert session.get_providers()[0] == "PitExecutionProvider"
    (got,), (want,) = session.run(None, FEEDS), pitc.load(bert_artifact).run(FEEDS).values()
    np.testing.assert_array_equal(got, want)

    names = ["CPUExecutionProvider"]  # what onnxruntime 1.24 says
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    with pytest.warns(pitc.PitcWarning, match=r"1\.25\.1.*pitc\.load\(folder\)\.session\(\)"):
        assert pitc.register() == "PitExecutionProvider"
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pitc.register()
