"""Hostile models: one line with file and node, the documented exit code, nothing written.

What ONNX Runtime runs although it is unusual is not refused: it compiles, and the results agree.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pitc
from pitc import api
from pitc.check.verify import audit_facts
from pitc.errors import NODE_CHARS, ModelError, UsageError, one_line
from pitc.importer import load_model
from pitc.passes.audit import points as audit_points
from pitc.session import plain_session, run_session
from tests.plugin.test_cli import Run

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
node = helper.make_node


def value(name: str, dtype: int = FLOAT, shape: Sequence[Any] | None = ("b", 4)) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(array: Any, name: str = "w") -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


ONES = weight(np.ones((4, 4), np.float32))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any] = (value("x"),),
    outputs: Sequence[Any] = (value("y"),),
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def relu(**fields: Any) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"], "act")], **fields)


def changed(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]) -> bytes:
    change(proto)
    return proto.SerializeToString()


def sparse(places: Any, dims: Sequence[int], name: str = "w") -> onnx.SparseTensorProto:
    values = weight(np.array([5, 6], np.float32), name)
    return helper.make_sparse_tensor(values, weight(np.array(places, np.int64), "at"), dims)


def choice(then: onnx.GraphProto, *more: onnx.NodeProto) -> onnx.ModelProto:
    other = helper.make_graph([node("Abs", ["x"], ["e"])], "else", [], [value("e")])
    first = node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other)
    return model([first, *more], [value("x"), value("c", BOOL, ())])


def body(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "then", [], [value("t")])


def function(opset: int = 17, calls: str = "Relu") -> onnx.ModelProto:
    domain = "local" if calls == "F" else ""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    inner = [node(calls, ["a"], ["b"], domain=domain)]
    made = helper.make_function("local", "F", ["a"], ["b"], inner, opsets)
    graph = helper.make_graph(
        [node("F", ["x"], ["y"], domain="local")], "g", [value("x")], [value("y")]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=[made], opset_imports=opsets, ir_version=8)


def with_sparse(places: Any, dims: Sequence[int]) -> onnx.ModelProto:
    proto = model([node("MatMul", ["x", "w"], ["y"])])
    proto.graph.sparse_initializer.append(sparse(places, dims))
    return proto


def sized(dims: Sequence[int]) -> onnx.ModelProto:
    proto = model([node("Add", ["x", "w"], ["y"])], weights=[ONES])
    proto.graph.initializer[0].dims[:] = dims
    return proto


def extents(*sizes: int) -> onnx.TensorProto:
    return weight(np.array(sizes, np.int64))


Source = onnx.ModelProto | bytes
LONG = "z" * 100_000
TYPELESS = onnx.ValueInfoProto(name="x")
CYCLE = [node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"], "two")]

#: What is wrong -> the model, and words of its error.
REFUSED: dict[str, tuple[Callable[[], Source], Sequence[str]]] = {
    "cycle": (
        lambda: model([*CYCLE, node("Relu", ["b"], ["y"])]),
        ["node 'two'", "has a cycle: 'two' -> 'one' -> 'two'"],
    ),
    "own result": (lambda: model([node("Add", ["x", "y"], ["y"], "n")]), ["node 'n'", "cycle"]),
    "unsorted body": (
        lambda: choice(body(node("Relu", ["u"], ["t"]), node("Relu", ["x"], ["u"]))),
        ["node 'if'", "topologically sorted", "input 'u'", "is not output of any previous nodes"],
    ),
    "value twice": (
        lambda: model([node("Relu", ["x"], ["y"], "a"), node("Abs", ["x"], ["y"], "b")]),
        ["'y' has been used as output names multiple times"],
    ),
    "input twice": (lambda: relu(inputs=[value("x"), value("x")]), ["'x'", "multiple times"]),
    "weight twice": (
        lambda: model([node("Add", ["x", "w"], ["y"])], weights=[ONES, ONES]),
        ["w initializer name is not unique"],
    ),
    "node name twice": (
        lambda: model([node("Relu", ["x"], ["a"], "n"), node("Abs", ["a"], ["y"], "n")]),
        ["two nodes with same node name (n)"],
    ),
    "unknown value": (lambda: relu(outputs=[value("nobody")]), ["'nobody'"]),
    "no outputs": (lambda: relu(outputs=[]), ["has no outputs"]),
    "nothing at all": (lambda: model([], [], []), ["has no outputs"]),
    "no type": (lambda: relu(inputs=[TYPELESS]), ["input 'x' has no type"]),
    "no opset": (
        lambda: changed(relu(), lambda m: m.ClearField("opset_import")),
        ["must specify opset_import"],
    ),
    "two opsets": (
        lambda: changed(relu(), lambda m: m.opset_import.append(helper.make_opsetid("", 13))),
        ["two opsets of ai.onnx: 17 and 13"],
    ),
    "new opset": (lambda: relu(opset=99), ["has opset 99, the newest supported one is", "pip"]),
    "old opset": (
        lambda: model([node("Relu", ["x"], ["y"], consumed_inputs=[0])], opset=1),
        ["ONNX Runtime cannot load it: Could not find an implementation for Relu(1)"],
    ),
    "no version": (lambda: changed(relu(), lambda m: m.ClearField("ir_version")), ["IR version"]),
    "undeclared domain": (
        lambda: model([node("Foo", ["x"], ["y"], "foo", domain="acme")]),
        ["node 'foo'", "No opset import for domain 'acme'"],
    ),
    "wrong attribute": (
        lambda: model([node("Concat", ["x", "x"], ["y"], "cc", axis=7)]),
        ["node 'cc'", "axis must be in [-rank, rank-1]"],
    ),
    "types clash": (
        lambda: model([node("Add", ["x", "w"], ["y"], "add")], weights=[weight([1, 2, 3, 4])]),
        ["node 'add'", "different types (tensor(float) and tensor(int64)"],
    ),
    "shapes clash": (
        lambda: model(
            [node("MatMul", ["x", "w"], ["y"], "mm")], weights=[weight(np.ones((5, 4), "f4"))]
        ),
        ["node 'mm'", "Incompatible dimensions"],
    ),
    "declared type": (lambda: relu(outputs=[value("y", INT64)]), ["node 'act'", "tensor(int64)"]),
    "weight and input differ": (
        lambda: model(
            [node("Add", ["x", "w"], ["y"])], [value("x"), value("w", shape=(7, 4))], weights=[ONES]
        ),
        ["ONNX Runtime cannot load it: Shape of initializer w does not match"],
    ),
    "huge weight": (lambda: sized([1 << 40, 1 << 40]), ["weight 'w' has 64 bytes of data"]),
    "overflowing weight": (lambda: sized([1 << 32, 1 << 32]), ["expected 73786976294838206464"]),
    "negative size": (lambda: sized([-4, -4]), ["Negative dimension value", "w"]),
    "short weight": (lambda: sized([5, 5]), ["too small", "w"]),
    "unknown element type": (
        lambda: changed(sized([4, 4]), lambda m: setattr(m.graph.initializer[0], "data_type", 77)),
        ["77"],
    ),
    "huge reshape": (
        lambda: model(
            [node("Reshape", ["x", "w"], ["y"], "r")], weights=[extents(1 << 40, 1 << 40)]
        ),
        ["node 'r'", "overflow"],
    ),
    "sparse place": (lambda: with_sparse([1, 55], [4, 4]), ["out of range"]),
    "sparse and huge": (
        lambda: with_sparse([1, 5], [1 << 40, 1 << 20]),
        ["sparse weight 'w' would take 4611686018427387904 bytes"],
    ),
    "recursion": (lambda: function(calls="F"), ["must not be recursive"]),
    "function's opset": (lambda: function(opset=13), ["FunctionOp imports version 13"]),
    "no UTF-8": (
        lambda: relu().SerializeToString().replace(b"act", b"\xff\xfe\xfd"),
        [r"a name in it is not UTF-8: b'\xff\xfe\xfd'"],
    ),
    "terminal codes": (
        lambda: model([node("Rleu", ["x"], ["y"], "\x1b[31m\nred")]),
        [r"node '\x1b[31m red'", "No Op registered for Rleu"],
    ),
    "long name": (lambda: model([node("Rleu", ["x"], ["y"], LONG)]), ["zzz...': is not valid"]),
    "trailing bytes": (lambda: relu().SerializeToString() + b"\xff\xff", ["or is cut off"]),
    "another message": (lambda: ONES.SerializeToString(), ["is not an ONNX model"]),
}


def write(source: Source, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("defect", REFUSED)
def test_one_line_and_nothing_written(run: Run, tmp_path: Path, defect: str) -> None:
    make, words = REFUSED[defect]
    path = write(make(), tmp_path)
    before = digest(path)
    code, out, err = run("compile", path, "-q", "-o", tmp_path / "m.pitc")
    assert (code, out) == (3, "")
    assert err.startswith(f"error: {path}: ") and err.count("\n") == 1
    assert all(word in err for word in words), err
    assert err.rstrip("\n").isprintable()
    assert len(err) < 1500 + len(str(path))
    assert os.listdir(tmp_path) == ["m.onnx"]
    assert digest(path) == before


def overridable() -> onnx.ModelProto:
    return model(
        [node("Add", ["x", "w"], ["y"])], [value("x"), value("w", shape=(4, 4))], weights=[ONES]
    )


def training() -> onnx.ModelProto:
    proto = relu()
    proto.training_info.add().algorithm.CopyFrom(body(node("Relu", ["x"], ["t"])))
    return proto


def sparse_body() -> onnx.ModelProto:
    then = body(node("MatMul", ["x", "w"], ["t"]))
    then.sparse_initializer.append(sparse([1, 5], [4, 4]))
    return choice(then)


def unnamed() -> onnx.ModelProto:
    proto = relu()
    proto.graph.name = ""
    return proto


#: Unusual, but ONNX Runtime runs it.
ACCEPTED: dict[str, Callable[[], onnx.ModelProto]] = {
    "unsorted": lambda: model([node("Relu", ["a"], ["y"]), node("Abs", ["x"], ["a"])]),
    "captured later": lambda: choice(body(node("Relu", ["l"], ["t"])), node("Abs", ["x"], ["l"])),
    "no nodes": lambda: model([], outputs=[value("x")]),
    "weight as output": lambda: relu(
        outputs=[value("y"), value("w", shape=(4, 4))], weights=[ONES]
    ),
    "input as output": lambda: relu(outputs=[value("y"), value("x")]),
    "output twice": lambda: relu(outputs=[value("y"), value("y")]),
    "graph without name": unnamed,
    "no ranks": lambda: relu(inputs=[value("x", shape=None)], outputs=[value("y", shape=None)]),
    "size 0": lambda: model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", shape=("b", 0))],
        weights=[weight(np.ones((0, 4), np.float32))],
    ),
    "unnamed sizes": lambda: relu(inputs=[value("x", shape=(None, -1))]),
    "NaN and Inf": lambda: model(
        [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "w"], ["y"])],
        weights=[weight(np.diag([1, np.nan, np.inf, 1]).astype(np.float32))],
    ),
    "overridable weight": overridable,
    "function": function,
    "sparse weight": lambda: with_sparse([1, 5], [4, 4]),
    "sparse constant": lambda: model(
        [
            node("Constant", [], ["w"], sparse_value=sparse([1, 5], [4, 4])),
            node("MatMul", ["x", "w"], ["y"]),
        ]
    ),
    "sparse weight of a body": sparse_body,
    "training info": training,
    "odd names": lambda: model(
        [node("Relu", ["x"], ["a\nb\0"], "[red]"), node("Abs", ["a\nb\0"], ["y"])]
    ),
    "long names": lambda: model([node("Relu", ["x"], [LONG], LONG), node("Abs", [LONG], ["y"])]),
    "strings": lambda: model(
        [node("Identity", ["x"], ["y"])],
        [value("x", TensorProto.STRING, ("n",))],
        [value("y", TensorProto.STRING, ("n",))],
    ),
    **{f"opset {n}": lambda n=n: relu(opset=n) for n in (6, 7, 8, 9, 11, 13, 18, 21, 23, 26)},  # type: ignore[misc]
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_onnx_runtime_runs_compiles_and_agrees(tmp_path: Path, case: str) -> None:
    path = write(ACCEPTED[case](), tmp_path)
    before = digest(path)
    plain = plain_session(path)
    shape = (3, 0) if case == "size 0" else (4, 4)
    feeds = {"x": np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)}
    if case == "strings":
        feeds = {"x": np.array(["a", "", "é"], object)}
    feeds |= {i.name: np.array(True) for i in plain.get_inputs() if i.name == "c"}
    feeds |= {i.name: np.ones((4, 4), np.float32) for i in plain.get_inputs() if i.name == "w"}
    want = run_session(plain, feeds)
    got = pitc.compile(path).run(feeds)
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    assert digest(path) == before


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("folder", 3, "is a folder"),
        ("pipe", 3, "is a device or pipe"),
        ("dangling link", 3, "no such file"),
        ("link to itself", 3, "cannot be read: Too many levels"),
        ("long name", 3, "cannot be read: File name too long"),
        ("no UTF-8", 3, r"m\udcff.onnx: the file's name is not UTF-8"),
    ],
)
def test_paths_that_are_no_model(
    run: Run, tmp_path: Path, kind: str, code: int, words: str
) -> None:
    path = tmp_path / "m.onnx"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would wait for ever
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "long name":
        path = tmp_path / ("m" * 300)
    else:
        path = write(relu(), tmp_path).rename(tmp_path / os.fsdecode(b"m\xff.onnx"))
    found, _, err = run("compile", path, "-q", "-o", tmp_path / "m.pitc")
    assert (found, err.count("\n")) == (code, 1)
    assert words in err


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")  # root may read everything

    path = write(relu(), tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        load_model(path)


@pytest.mark.parametrize("location", ["a\0b", "w" * 300, "loop"])
def test_external_data_with_a_name_that_is_none(tmp_path: Path, location: str) -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], weights=[ONES])
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelError, match="weight 'w': external data"):
        load_model(write(proto, tmp_path))


def test_what_onnx_runtime_refuses_is_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads the model beside the passes, which may stumble over the same thing."""

    def stumble(*_: object) -> None:
        raise AssertionError("a pass")

    monkeypatch.setattr(api, "lower", stumble)
    refused = model([node("Relu", ["x"], ["y"], consumed_inputs=[0])], opset=1)
    for call in (pitc.compile, pitc.explain):
        with pytest.raises(ModelError, match="ONNX Runtime cannot load it"):
            call(refused)
        with pytest.raises(AssertionError, match="a pass"):
            call(relu())


def test_operators_of_the_users_own_library(run: Run, tmp_path: Path) -> None:
    """They compile: the program that runs the artifact has the library. Here it is missing."""
    proto = model([node("Foo", ["x"], ["y"], "foo", domain="acme")])
    proto.opset_import.append(helper.make_opsetid("acme", 1))
    path = write(proto, tmp_path)
    assert run("compile", path, "-q", "-o", tmp_path / "m.pitc")[0] == 0
    code, _, err = run("run", tmp_path / "m.pitc")
    assert code == 3
    assert err.startswith("error: m.onnx: ONNX Runtime cannot load it: acme:Foo")
    assert "register it in the session options" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (relu(inputs=[value("x", shape=(1 << 40, 1 << 40))]), "too large to be made"),
        (relu(inputs=[value("x", shape=None)]), "input 'x' has no rank"),
        (ACCEPTED["strings"](), "input 'x' is no tensor of numbers"),
        (
            model(
                [node("ConcatFromSequence", ["x"], ["y"], axis=0)],
                [helper.make_tensor_sequence_value_info("x", FLOAT, ["n"])],
                [value("y", shape=("m",))],
            ),
            "input 'x' is no tensor, so",
        ),
        (
            model(
                [
                    node("ConstantOfShape", ["w"], ["c"], "cs"),
                    node("ReduceSum", ["c"], ["s"]),
                    node("Add", ["x", "s"], ["y"]),
                ],
                weights=[extents(1 << 22, 1 << 22)],
            ),
            "node 'cs': the model fails on these inputs: Failed to allocate memory",
        ),
        (
            model(
                [node("Range", ["i", "w", "j"], ["r"]), node("Cast", ["r"], ["y"], to=FLOAT)],
                [],
                [value("y", shape=("k",))],
                [weight(np.int64(n), name) for n, name in ((0, "i"), (1 << 50, "w"), (1, "j"))],
            ),
            "the model fails on these inputs: Failed to allocate memory",
        ),
    ],
    ids=["huge", "no rank", "strings", "sequence", "out of memory", "long range"],
)
def test_inputs_that_cannot_be_made(
    run: Run, tmp_path: Path, proto: onnx.ModelProto, words: str
) -> None:
    code, _, err = run("run", write(proto, tmp_path))
    assert code == (6 if "memory" in words else 2)
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err


def test_outputs_that_are_no_arrays(run: Run, tmp_path: Path) -> None:
    proto = model(
        [node("SplitToSequence", ["x"], ["y"], axis=0)],
        outputs=[helper.make_tensor_sequence_value_info("y", FLOAT, ["n", 4])],
    )
    path = write(proto, tmp_path)
    code, out, _ = run("run", path, "--shape", "b=2", "--save", tmp_path / "y.npz")
    assert code == 0 and "y[1]" in out
    assert set(np.load(tmp_path / "y.npz")) == {"y[0]", "y[1]"}
    assert run("verify", path, "-q")[0] == 0


def test_sizes_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    proto = model([node("Add", ["x", "z"], ["y"], "add")], [value("x"), value("z")])
    compiled = pitc.compile(proto)
    feeds = {"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32)}
    with pytest.raises(
        UsageError, match=r"^inputs disagree: 'b' is 2 in 'x' and 3 in 'z'.*node 'add'"
    ):
        compiled.run(feeds)


def test_error_texts() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("é\x1b\udcff") == r"é\x1b\udcff"
    text = str(ModelError("m" * 5000, node="n" * 5000, hint="do this"))
    assert f"node '{'n' * NODE_CHARS}...'" in text and text.endswith("... (do this)")


@pytest.mark.parametrize("count", [10_000])
def test_many_nodes(count: int) -> None:
    names = ["x", *(f"v{k}" for k in range(1, count)), "y"]
    chain = [node("Relu", [names[k]], [names[k + 1]]) for k in range(count)]
    chain.reverse()
    order = [n.outputs[0].name for n in load_model(model(chain)).graph]
    assert order == names[1:]


def test_the_audit_leaves_weights_in_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proto ends at 2 GB: what the auditor gives to ONNX Runtime must not hold the weights."""
    table = np.random.default_rng(0).standard_normal((500, 64)).astype(np.float32)
    proto = model(
        [
            node("Gather", ["table", "ids"], ["e"]),
            node("MatMul", ["e", "w"], ["h"]),
            node("Relu", ["h"], ["y"]),
        ],
        [value("ids", INT64, ("b", "s")), value("mask", INT64, ("b", "s"))],
        [value("y", FLOAT, ("b", "s", 64))],
        [weight(table, "table"), weight(table[:64])],
    )
    path = tmp_path / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    sizes: list[int] = []
    real = onnxruntime.InferenceSession

    def measured(content: bytes, *words: Any, **options: Any) -> Any:
        sizes.append(len(content))
        return real(content, *words, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", measured)
    monkeypatch.setattr(audit_points, "BLOCK", 64)  # every weight is looked at in pieces
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    found = audit_facts(load_model(path), "mask", [{"ids": mask * 3, "mask": mask}] * 2)
    assert not found.failures and not found.faults and found.fill_checks and found.dead_checks
    assert sizes and max(sizes) < 4_000 < table.nbytes
