"""ONNX Runtime's CUDA provider for one architecture, from fat binaries that are made here."""

import ctypes
import importlib
import json
import struct
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import provider
from benchmarks.gpu.fatbin import (
    ELF,
    MACHINE_CODE,
    PTX,
    LayoutError,
    _zstd,
    fat_binaries,
    kernels,
)
from benchmarks.gpu.pack import _LARGE, needed
from benchmarks.gpu.provider import PROVIDER, ProviderError, Rule, make, strip, unpack
from benchmarks.gpu.there import THERE, missing

Piece = tuple[int, int, bytes, bool]
"""Kind, architecture, payload; whether it is compressed."""

FILTERS = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="Python before 3.11.4 unpacks no archive safely"
)


def cubin(*names: str) -> bytes:
    """Machine code with some kernels, as far as anybody looks at it."""
    head = ELF + b"\x02\x01\x01\x41\x08" + bytes(7) + struct.pack("<HH", 2, 190) + bytes(44)
    strings = b"\0.symtab\0" + b"".join(f".text.{name}\0".encode() for name in names)
    code = head + strings + b"machine code " * 20
    return code + bytes(-len(code) % 8)


def compressed(data: bytes) -> bytes:
    library = _zstd()
    library.ZSTD_compress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(2 * len(data) + 64)
    size = library.ZSTD_compress(
        out, ctypes.c_size_t(len(out)), data, ctypes.c_size_t(len(data)), 3
    )
    return out.raw[:size]


def entry(
    piece: Piece,
    head: int = 64,
    version: int = 0x101,
    flags: int = 0x11,
    stored: int | None = None,
    length: int | None = None,
) -> bytes:
    kind, arch, data, is_compressed = piece
    payload = compressed(data) if is_compressed else data
    sizes = (len(payload), len(data)) if is_compressed else (0, 0)
    stored, length = sizes[0] if stored is None else stored, sizes[1] if length is None else length
    payload += bytes(-len(payload) % 8)
    flags |= 0x8000 if is_compressed else 0
    words = kind, version, head, len(payload), stored, 0, 1, 8, arch, 0, 0, flags, 0, length
    return struct.pack("<HHIQIIHHIIIQQQ", *words).ljust(head, b"\0") + payload


def fat(*entries: bytes, magic: int = 0xBA55ED50, version: int = 1, head: int = 16) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", magic, version, head, len(body)) + body


def wrapper(version: int = 1) -> bytes:
    return struct.pack("<IIQQ", 0x466243B1, version, 0, 0)


def shared_object(fatbins: bytes, wrappers: bytes, name: str = ".nv_fatbin") -> bytes:
    """An ELF file with those two sections, one behind the other, and text around."""
    names = ["", ".text", name, ".nvFatBinSegment", ".bss", ".shstrtab"]
    strings = b"".join(text.encode() + b"\0" for text in names)
    bodies = [b"", b"\x90" * 24, fatbins, wrappers, b"", strings]
    out, heads = b"\x7fELF\x02\x01\x01" + bytes(57), b""
    for number, body in enumerate(bodies):
        place = sum(len(text) + 1 for text in names[:number])
        kind, size = (8, 1 << 40) if names[number] == ".bss" else (1 if number else 0, len(body))
        heads += struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, len(out), size, 0, 0, 8, 0)
        out += body + bytes(-len(body) % 8)
    header = bytearray(out)
    struct.pack_into("<Q", header, 40, len(out))
    struct.pack_into("<HHH", header, 58, 64, len(bodies), len(bodies) - 1)
    return bytes(header) + heads


ENCODER, EXPERTS = ("_Z9LayerNormv", "_Z7SoftmaxI6__halfEvv"), ("_Z9MoeFCGemmi", "_Z9MoeFCGemmf")
EMPTY = "_ZN3cub11EmptyKernelIvEEvv"
FILES: Sequence[Sequence[Piece]] = (
    [
        (MACHINE_CODE, 80, cubin(*ENCODER), True),
        (MACHINE_CODE, 90, cubin(*ENCODER), True),
        (MACHINE_CODE, 120, cubin(*ENCODER), False),
        (PTX, 90, b".version 9.0\n.target sm_90\n".ljust(32), False),
    ],
    [(MACHINE_CODE, 90, cubin(*EXPERTS, EMPTY), True)],
    [(MACHINE_CODE, 90, cubin(ENCODER[0], EXPERTS[0]), False)],
    [(MACHINE_CODE, 90, cubin(), False)],
    [(MACHINE_CODE, 120, cubin(*ENCODER), True)],
    [(MACHINE_CODE, 80, cubin(*ENCODER), False), (PTX, 80, b".target sm_80".ljust(16), False)],
)


def library(pieces: Sequence[Sequence[Piece]] = FILES) -> bytes:
    """Entries with heads of two lengths, zeros between the fat binaries."""
    fatbins = b"".join(
        fat(*(entry(p, head=112 if p[1] == 120 else 64) for p in each)) + bytes(8 * (i % 3))
        for i, each in enumerate(pieces)
    )
    return shared_object(fatbins, wrapper() * len(pieces))


def test_entries_are_found_with_their_kernels() -> None:
    image = library()
    found = fat_binaries(image)
    assert [[(e.kind, e.arch) for e in each] for each in found] == [
        [(kind, arch) for kind, arch, *_ in each] for each in FILES
    ]
    for each, pieces in zip(found, FILES, strict=True):
        for e, (kind, _, data, is_compressed) in zip(each, pieces, strict=True):
            payload = compressed(data) if is_compressed else data
            assert image[e.at : e.at + len(payload)] == payload
            assert e.size == len(payload) + -len(payload) % 8
            assert not any(image[e.at + len(payload) : e.at + e.size])
            if kind == MACHINE_CODE:
                names = (*ENCODER, *EXPERTS, EMPTY)
                assert kernels(image, e) == {n for n in names if n.encode() in data}


def test_only_what_the_driver_takes_is_left() -> None:
    """Heads stay; so does a file some kernel of which is needed, and PTX where nothing else is."""
    image = library()
    stripped = strip(image, 90)
    assert len(stripped.image) == len(image)
    assert fat_heads(stripped.image) == fat_heads(image)
    left = [
        [any(stripped.image[e.at : e.at + e.size]) for e in each] for each in fat_binaries(image)
    ]
    assert left == [
        [False, True, False, False], [False], [True], [True], [False], [False, True],
    ]  # fmt: skip
    whole = [e for each in fat_binaries(image) for e in each]
    inside = sum(e.size for e in whole)
    assert stripped.kept + stripped.others + sum(stripped.left_out.values()) == inside
    assert stripped.left_out["experts: grouped products of weights of few bits"] > 0
    for e in whole:  # what is left is as it was, and what is not code, too
        kept = stripped.image[e.at : e.at + e.size]
        assert kept in (image[e.at : e.at + e.size], bytes(e.size))
    assert outside(image, stripped.image) == 0


def fat_heads(image: bytes) -> list[bytes]:
    """What stands between the payloads."""
    places = sorted((e.at, e.at + e.size) for each in fat_binaries_of(image) for e in each)
    edges = [0, *(x for place in places for x in place), len(image)]
    return [image[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def fat_binaries_of(image: bytes) -> list[tuple[provider.Entry, ...]]:
    """By the library before it was stripped: payloads of zeros are not what a reader expects."""
    assert len(image) == len(library())
    return fat_binaries(library())


def outside(before: bytes, after: bytes) -> int:
    """Bytes that differ where no code is."""
    return sum(a != b for a, b in zip(fat_heads(before), fat_heads(after), strict=True))


def test_rules_name_all_words_of_all_kernels() -> None:
    image = library()
    assert sum(strip(image, 90, ()).left_out.values()) == 0
    both = strip(image, 90, [Rule(("Softmax", "6__half"), "half"), Rule(("LayerNorm",), "norms")])
    assert [x > 0 for x in both.left_out.values()] == [True, False]  # told by the first kernel
    one = strip(image, 90, [Rule(("Softmax", "bfloat"), "no"), Rule(("LayerNorm",), "norms")])
    assert sum(one.left_out.values()) == 0


def test_the_newest_code_of_a_generation_is_taken() -> None:
    pieces = [(MACHINE_CODE, arch, cubin("k"), False) for arch in (75, 80, 86, 89, 90)]
    image = library([pieces])
    for arch, taken in ((80, 80), (87, 86), (89, 89), (90, 90)):
        after = strip(image, arch).image
        (each,) = fat_binaries(image)
        assert [e.arch for e in each if any(after[e.at : e.at + e.size])] == [taken]
    with pytest.raises(ProviderError, match="nothing in the library is for sm_100"):
        strip(image, 100)


GOOD: Piece = (MACHINE_CODE, 90, cubin("k"), True)
PLAIN: Piece = (MACHINE_CODE, 90, cubin("k"), False)
WRONG = {
    "magic": (fat(entry(GOOD), magic=0xBA55ED51), "a fat binary at"),
    "version": (fat(entry(GOOD), version=2), "version 1"),
    "head": (fat(entry(GOOD), head=24), "version 1"),
    "size": (fat(entry(GOOD))[:-8], "bytes of entries"),
    "kind": (fat(entry((3, 90, cubin("k"), False))), "PTX or machine code"),
    "entry version": (fat(entry(GOOD, version=0x102)), "version 0x101"),
    "short head": (fat(entry(GOOD, head=64).replace(b"\x40\0\0\0", b"\x30\0\0\0", 1)), "head"),
    "odd head": (fat(entry(GOOD, head=68)), "head"),
    "flags": (fat(entry(GOOD, flags=0x2011)), "known flags"),
    "not compressed": (fat(entry(PLAIN, flags=0x8011)), "compressed by zstd"),
    "other code": (fat(entry((MACHINE_CODE, 90, b"LZ4?" + bytes(60), False))), "machine code"),
    "rest": (fat(entry(GOOD)) + b"\1" + bytes(31), "a fat binary at"),
    "size without a flag": (fat(entry(PLAIN, stored=5)), "without its flag"),
    "length": (fat(entry(GOOD, length=1 << 40)), "at most"),
    "cut entry": (fat(entry(GOOD)[:40]), "more bytes"),
    "cut payload": (fat(entry(PLAIN)[:-8]), "bytes of a payload"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_layouts_are_refused(wrong: str) -> None:
    fatbins, told = WRONG[wrong]
    with pytest.raises(LayoutError, match=told):
        fat_binaries(shared_object(fatbins, wrapper()))


def far(image: bytes) -> bytes:
    """Its text is said to begin behind the file's end."""
    changed = bytearray(image)
    (table,) = struct.unpack_from("<Q", image, 40)
    struct.pack_into("<Q", changed, table + 64 + 24, len(image))
    return bytes(changed)


def test_other_files_are_refused() -> None:
    good = fat(entry(GOOD))
    assert fat_binaries(shared_object(good, wrapper()))
    for image, told in (
        (shared_object(good, wrapper(), ".fatbin"), "one section .nv_fatbin, there are 0"),
        (shared_object(good, wrapper(version=2)), "a wrapper"),
        (shared_object(good, wrapper() * 2), "1 fat binaries, 2 wrappers"),
        (shared_object(good + good, wrapper()), "2 fat binaries, 1 wrappers"),
        (shared_object(good, wrapper())[:-8], "inside of the file"),
        (far(shared_object(good, wrapper())), "bytes of a section"),
        (b"MZ" + bytes(100), "an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(100), "an ELF file"),
    ):
        with pytest.raises(LayoutError, match=told):
            fat_binaries(image)
    image = shared_object(good, wrapper())
    ((e,),) = fat_binaries(image)
    broken = bytearray(image)
    broken[e.at + 8 : e.at + e.stored] = bytes(e.stored - 8)
    with pytest.raises(LayoutError, match="when decompressed"):
        strip(bytes(broken), 90)
    other = cubin("k").replace(struct.pack("<HH", 2, 190), struct.pack("<HH", 2, 62))
    with pytest.raises(LayoutError, match="machine code of a GPU"):
        strip(library([[(MACHINE_CODE, 90, other, False)]]), 90)


@pytest.fixture(name="wheel")
def _wheel(tmp_path: Path) -> Path:
    files = {
        "onnxruntime/__init__.py": b"import onnxruntime.capi\n",
        "onnxruntime/capi/__init__.py": b"ANSWER = 42\n",
        "onnxruntime/capi/onnxruntime_pybind11_state.cpython-312-x86_64-linux-gnu.so": b"code" * 99,
        "onnxruntime/capi/libonnxruntime_providers_shared.so": b"shared",
        "onnxruntime/capi/libonnxruntime_providers_tensorrt.so": b"left",
        "onnxruntime/capi/libonnxruntime.so.1.30.0": b"left",
        "onnxruntime/tools/check.py": b"left",
        "onnxruntime_gpu-1.30.0.dist-info/METADATA": b"Name: onnxruntime-gpu\n",
        "onnxruntime_gpu-1.30.0.dist-info/RECORD": b"left",
        PROVIDER: library(),
    }
    path = tmp_path / "onnxruntime_gpu-1.30.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture(name="nvidia")
def _nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NVIDIA's packages, whose libraries lie in two folders."""
    root = tmp_path / "site"
    for name in provider.LIBRARIES:
        folder = root / "nvidia" / ("cu13" if "cublas" in name else name[3:9]) / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    importlib.invalidate_caches()
    return root / "nvidia"


@FILTERS
def test_an_archive_travels(
    tmp_path: Path, wheel: Path, nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "made" / "ort.tar.xz", tmp_path / "there"
    make(wheel, out)
    again = tmp_path / "again.tar.xz"
    make(wheel, again)
    assert again.read_bytes() == out.read_bytes()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = unpack(out, folder)
    assert found["PYTHONPATH"] == str(folder)
    libraries = sorted(str(path) for path in nvidia.glob("*/lib"))
    paths = found["LD_LIBRARY_PATH"].split(":")
    assert paths[:3] == libraries and paths[-1] == "/before"  # this Python may have packages, too
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        left = {n for n in archive.namelist() if archive.read(n) == b"left"}
        assert files == set(archive.namelist()) - left | {provider.FACTS}
        assert (folder / PROVIDER).read_bytes() == strip(archive.read(PROVIDER), 90).image
    facts = json.loads((folder / provider.FACTS).read_text())
    assert facts["arch"] == "sm_90" and facts["wheel"] == wheel.name and facts["kept_bytes"] > 0


@FILTERS
def test_libraries_that_are_not_there_are_named(
    tmp_path: Path, wheel: Path, nvidia: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ort.tar.xz"
    provider.main([str(wheel), str(out)])
    assert f"{out}: 0.0 MB" in capsys.readouterr().out
    provider.main(["--unpack", str(out), str(tmp_path / "there")])
    assert f"export LD_LIBRARY_PATH={nvidia}" in capsys.readouterr().out
    (nvidia / "curand" / "lib" / "libcurand.so.10").unlink()
    with pytest.raises(SystemExit) as stopped:
        provider.main(["--unpack", str(out), str(tmp_path / "there")])
    assert stopped.value.code == 1
    assert "no package here has libcurand.so.10\n" in capsys.readouterr().err


def test_a_wheel_without_the_provider_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "onnxruntime-1.30.0.whl"
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("onnxruntime/__init__.py", "")
    for words in ([str(plain), str(tmp_path / "out")], ["--download", "a", "b"], ["a"]):
        with pytest.raises(SystemExit) as stopped:
            provider.main(words)
        assert stopped.value.code == (1 if words[0] == str(plain) else 2)
    assert f"{plain.name} has no {PROVIDER}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@FILTERS
def test_nothing_leaves_the_folder(tmp_path: Path, nvidia: Path) -> None:
    assert nvidia.exists()
    archive = tmp_path / "bad.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(archive, tmp_path / "there")


def test_packs_leave_out_what_is_there() -> None:
    """Each name is one of a package that a run needs; pydantic is none of the image's."""
    names = {*needed(), *_LARGE}
    assert names >= THERE and {"numpy", "onnx", "onnxruntime", "pytest"} <= THERE
    assert missing(["pydantic", "numpy", "pydantic-core", "rich"]) == ["pydantic", "pydantic-core"]
