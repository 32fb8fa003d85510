"""Records of the manifest take what was declared, and nothing else."""

from dataclasses import asdict

import pytest

from pitc.artifact.manifest import FileRecord, Kernels, Manifest, Options, Source
from pitc.artifact.record import read_record

SUM = 64 * "a"
WHOLE = Manifest(
    schema_version=3,
    versions={"pitc": "0.1.0"},
    source=Source("model.onnx", SUM),
    options=Options("cpu", None),
    pit_nodes=1,
    plan_version=4,
    kernels=Kernels("Linux", "x86_64", ["v4", "v3"], [], ["pack_b4"]),
    files={"model.onnx": FileRecord(7, SUM)},
    reports={"cpu": {"nodes": [{"any": 1.5}]}},
)


def test_what_was_written_is_read() -> None:
    assert read_record(Manifest, asdict(WHOLE)) == WHOLE
    bare = asdict(WHOLE) | {"kernels": None, "plan_version": None, "reports": {}, "files": {}}
    assert asdict(read_record(Manifest, bare)) == bare


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pit_nodes": True}, "pit_nodes: expected int, found bool"),
        ({"pit_nodes": 1.0}, "pit_nodes: expected int, found float"),
        ({"pit_nodes": -1}, "pit_nodes, plan_version: expected at least 0"),
        ({"plan_version": "4"}, "plan_version: expected int, found str"),
        ({"colour": "red"}, "colour: expected no such field"),
        ({"source": None}, "source: expected an object, found NoneType"),
        ({"source": {"name": "m"}}, "source.sha256: expected a field"),
        ({"source": {"name": "m", "sha256": "x"}}, "source: sha256: expected 64 hexadecimal"),
        ({"options": {"target": "cpu", "padding": 3}}, "options.padding: expected str, found int"),
        ({"kernels": asdict(WHOLE)["kernels"] | {"levels": ["v9"]}}, r"kernels.levels.0: expected"),
        (
            {"kernels": asdict(WHOLE)["kernels"] | {"archs": "sm_90"}},
            "kernels.archs: expected list",
        ),
        ({"files": {"a": {"bytes": -1, "sha256": SUM}}}, "files.a: bytes: expected at least 0"),
        ({"files": []}, "files: expected dict, found list"),
        ({"reports": {"tpu": {}}}, "reports: expected 'cpu' or 'cuda', found str"),
        ({"versions": {"pitc": None}}, "versions.pitc: expected str, found NoneType"),
    ],
)
def test_what_differs_is_named(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_record(Manifest, asdict(WHOLE) | changes)


def test_every_field_is_wanted() -> None:
    for name in asdict(WHOLE):
        body = asdict(WHOLE)
        del body[name]
        with pytest.raises(ValueError, match=f"{name}: expected a field"):
            read_record(Manifest, body)
    for value in ([], "text", None, 3):
        with pytest.raises(ValueError, match="expected an object"):
            read_record(Manifest, value)
