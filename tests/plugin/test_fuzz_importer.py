"""Hostile models: each is compiled, or refused in one line; nothing is half written or touched.

`PITC_FUZZ=100 pytest tests/plugin/test_fuzz_importer.py` (`make fuzz`) tries 100 times as many.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pitc
from pitc.artifact.check import Verdict, check_artifact
from pitc.errors import ModelError
from pitc.importer import load_model
from tests.fuzz_models import CHANGES, Change, apply, seeds

SCALE = int(os.environ.get("PITC_FUZZ", "1"))
ALLOWED = {0: "", 2: "error: ", 3: "error: "}  # exit code -> how stderr begins

Run = Callable[..., tuple[int, str, str]]
models = st.sampled_from(range(len(seeds())))


def fuzz(examples: int) -> settings:
    """So many examples, each within 20 s; files of one example are overwritten by the next."""
    return settings(
        max_examples=examples * SCALE,
        deadline=20_000,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def load(source: Path | onnx.ModelProto) -> bool:
    """Whether a model is read; if not, why is one line."""
    try:
        load_model(source)
    except ModelError as error:
        assert "\n" not in str(error) and str(error).isprintable()
        return False
    return True


#: (place, how, value): a byte becomes another, one bit flips, bytes are cut out or repeated.
edits = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from("=^-+"), st.integers(0, 255)),
    min_size=1,
    max_size=3,
)


@fuzz(150)
@given(which=models, changes=edits)
def test_changed_bytes(tmp_path: Path, which: int, changes: list[tuple[int, str, int]]) -> None:
    data = bytearray(seeds()[which].SerializeToString())
    for place, how, value in changes:
        at = place % len(data)
        if how in "=^":
            data[at] = value if how == "=" else data[at] ^ 1 << value % 8
        else:
            part = data[at : at + value % 20 + 1]
            data[at : at + len(part) * (how == "-")] = b"" if how == "-" else part
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    load(path)
    assert path.read_bytes() == data


@fuzz(150)
@given(which=models, changes=CHANGES)
def test_changed_fields(which: int, changes: list[Change]) -> None:
    load(apply(seeds()[which], changes))


@fuzz(60)
@given(which=models, changes=CHANGES)
@example(which=0, changes=[(18647, 18647, 200, 18647)])  # operator set -2^63
def test_explained(run: Run, tmp_path: Path, which: int, changes: list[Change]) -> None:
    """All passes; what ONNX Runtime loads, pitc must understand or leave as it is."""
    path = tmp_path / "model.onnx"
    path.write_bytes(apply(seeds()[which], changes).SerializeToString())
    code, _, err = run(
        "explain", path, "--json", "--padding", ("mask", "attention_mask")[which == 0]
    )
    assert err.startswith(ALLOWED[code]) and err.count("\n") == (code != 0), err


@fuzz(25)
@given(which=models, changes=CHANGES)
def test_compiled(tmp_path: Path, which: int, changes: list[Change]) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "model.pitc"
    content = apply(seeds()[which], changes).SerializeToString()
    path.write_bytes(content)
    shutil.rmtree(output, ignore_errors=True)
    try:
        pitc.compile(path, output=output)
    except ModelError as error:
        assert "\n" not in str(error)
        assert os.listdir(tmp_path) == [path.name]
    else:
        assert check_artifact(output).verdict is Verdict.SUPPORTED
    assert path.read_bytes() == content


KEYS = ("location", "offset", "length", "checksum", "", "x")
VALUES = ("0", "-1", "8", "w", "w.bin", "", "..", "../w.bin", "/dev/zero", "w\0", "9" * 30, "1e3")


@fuzz(120)
@given(
    entries=st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES) | st.text(max_size=5)), max_size=5
    ),
    dims=st.lists(st.sampled_from([0, 1, 2, 4, -1, 1 << 40]), max_size=3),
    kind=st.integers(-1, 30),
    size=st.sampled_from([0, 7, 8, 4096]),
)
def test_external_data(
    tmp_path: Path, entries: list[tuple[str, str]], dims: list[int], kind: int, size: int
) -> None:
    """Entries of an external tensor say where it is: inside its file, or the model is refused."""
    model = onnx.ModelProto()
    model.CopyFrom(seeds()[2])
    tensor = model.graph.initializer.add(name="w", data_location=onnx.TensorProto.EXTERNAL)
    tensor.data_type = kind
    tensor.dims.extend(dims)
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(b"\1" * size)
    if load(path):
        found = load_model(path).graph.initializers["w"].const_value
        assert found is not None and found.numpy().nbytes <= max(size, 16)


def test_seeds_are_valid(run: Run, tmp_path: Path) -> None:
    """Else everything above would only be refused."""
    for model in seeds():
        onnx.save(model, tmp_path / "model.onnx")
        assert run("explain", tmp_path / "model.onnx")[0] == 0


@pytest.mark.parametrize("where", ["dense", "sparse", "attribute"])
def test_more_data_than_the_shape_needs(where: str) -> None:
    """ONNX's checker finds too little only."""
    model = onnx.ModelProto()
    model.CopyFrom(seeds()[1])
    constant = model.graph.node.add(op_type="Constant", output=["unread"])
    constant.attribute.append(onnx.helper.make_attribute("value", model.graph.initializer[0]))
    tensor = {
        "dense": model.graph.initializer[0],
        "sparse": model.graph.sparse_initializer[0].values,
        "attribute": constant.attribute[0].t,
    }[where]
    load_model(model)
    tensor.raw_data += b"\0"
    with pytest.raises(ModelError, match=f"'{tensor.name}' has . bytes of data, expected .$"):
        load_model(model)
