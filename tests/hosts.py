"""ONNX Runtime for C# and Java, from PyPI and npm: `python -m tests.hosts`, or `make hosts`.

Neither registry has the official packages, but both have what they are made of:

* A package for Unity holds, of one version, the C# sources, `libonnxruntime.so`, the Java classes
  and the headers (those two in the library for Android, whose JNI library needs a little help:
  `tests/android_libc.c`).
* .NET Core 3.1 comes as a wheel, without a compiler; an old code generator brings Roslyn, and
  pythonnet calls it. It hashes with OpenSSL 1.1, which a wheel of psycopg2 has.

Some 190 MB are fetched, and 130 MB lie in build/hosts. The tests of `examples/host` run there where
it is; without it they skip C# and Java.
"""

import importlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOSTS = ROOT / "build" / "hosts"
STAMP = HOSTS / ".installed"
HOW = "run: make hosts"

UNITY = "com.github.asus4.onnxruntime@0.4.9"
ROSLYN = "@autorest/csharp@3.0.0-beta.20211216.2"
DOTNET = "dotnetcore2==3.1.23"
OPENSSL = "psycopg2-binary==2.9.5"
PYTHONNET = "pythonnet==3.2.1"

HEADERS = HOSTS / "headers"
JAR = HOSTS / "java" / "onnxruntime.jar"
JNI = HOSTS / "java" / "libonnxruntime4j_jni.so"
LIBRARY = HOSTS / "lib" / "libonnxruntime.so"
MANAGED = HOSTS / "csharp" / "Microsoft.ML.OnnxRuntime.dll"
OPENSSL_FOLDER = HOSTS / "openssl" / "psycopg2_binary.libs"
DOTNET_ROOT = HOSTS / "dotnet" / "dotnetcore2" / "bin"
FRAMEWORK = DOTNET_ROOT / "shared" / "Microsoft.NETCore.App" / "3.1.23"
RUNTIME_CONFIG = """{"runtimeOptions": {
  "tfm": "netcoreapp3.1",
  "framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
  "configProperties": {"System.Globalization.Invariant": true}
}}
"""


def missing() -> str:
    """Why C# and Java cannot be tried here; empty where they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "what the registries have is for Linux on x86-64"
    return "" if STAMP.exists() else f"no ONNX Runtime for C# and Java: {HOW}"


def compile_csharp(out: Path, sources: Iterable[Path], references: Sequence[Path] = ()) -> None:
    """Compile C#, in a process of its own; beside `out` lies then what `dotnet out` needs.

    Raises:
        ValueError: The compiler refuses it; its errors.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".runtimeconfig.json").write_text(RUNTIME_CONFIG)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(OPENSSL_FOLDER),
        "PYTHONPATH": os.pathsep.join([str(HOSTS / "python"), str(ROOT)]),
    }
    lists = [[str(path) for path in paths] for paths in (sources, references)]
    words = [str(out), ",".join(lists[0]), ",".join(lists[1])]
    run = [sys.executable, "-c", "from tests import hosts; hosts.roslyn()", *words]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise ValueError(done.stdout + done.stderr)


def csharp(folder: Path, text: str) -> list[str | Path]:
    """Compile a program in C#, if that can be done here; the command that runs it."""
    needed()
    source, out = folder / "Host.cs", folder / "Host.dll"
    source.write_text(text, "utf-8")
    compile_csharp(out, [source], [MANAGED])
    for path in (MANAGED, LIBRARY):  # where .NET looks for them
        (folder / path.name).symlink_to(path)
    return [DOTNET_ROOT / "dotnet", out]


def java(folder: Path, name: str, text: str) -> list[str | Path]:
    """Compile a class with a `main`, if that can be done here; the command that runs it."""
    needed()
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not (shutil.which("javac") and shutil.which("java")):
        pytest.skip("no javac, or no C compiler")
    libc = folder / "libc.so"
    version = re.search(rb"VERS_[0-9.]+", LIBRARY.read_bytes())
    assert version is not None
    (folder / "versions").write_text(f"LIBC {{}}; {version[0].decode()} {{}};")
    options = ["-shared", "-fPIC", "-fno-builtin", f'-DORT_VERSION="{version[0].decode()}"']
    link = [f"-Wl,--version-script={folder / 'versions'}", "-o", str(libc)]
    source = ROOT / "tests" / "android_libc.c"
    subprocess.run([compiler, str(source), *options, *link], check=True)
    for other in ("libm.so", "libdl.so"):
        (folder / other).symlink_to(libc)
    for path in (JNI, LIBRARY):
        (folder / path.name).symlink_to(path)
    (folder / f"{name}.java").write_text(text, "utf-8")
    compile_ = ["javac", "-Xlint:all", "-Werror", "-cp", JAR, "-d", folder, f"{name}.java"]
    subprocess.run(list(map(str, compile_)), cwd=folder, check=True)
    classes = os.pathsep.join([str(JAR), str(folder)])
    loader = ["env", f"LD_LIBRARY_PATH={folder}", "java"]
    return [*loader, f"-Donnxruntime.native.path={folder}", "-cp", classes, name]


def needed() -> None:
    """Skip the test where C# and Java cannot be tried."""
    if why := missing():
        pytest.skip(why)


def roslyn() -> None:
    """Call the compiler: output, sources and references are the program's arguments."""
    out, sources, references = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
    config = str(out.with_suffix(".runtimeconfig.json"))
    runtime = importlib.import_module("clr_loader").get_coreclr(
        runtime_config=config, dotnet_root=str(DOTNET_ROOT)
    )
    importlib.import_module("pythonnet").set_runtime(runtime)
    clr = importlib.import_module("clr")
    sys.path.append(str(HOSTS / "roslyn"))
    for name in ("System.Collections.Immutable", "System.Reflection.Metadata"):
        clr.AddReference(name)
    for name in ("Microsoft.CodeAnalysis", "Microsoft.CodeAnalysis.CSharp"):
        clr.AddReference(name)
    base = importlib.import_module("Microsoft.CodeAnalysis")
    csharp = importlib.import_module("Microsoft.CodeAnalysis.CSharp")
    collections = importlib.import_module("System.Collections.Generic")

    newest = csharp.CSharpParseOptions(csharp.LanguageVersion.Latest)
    trees = collections.List[base.SyntaxTree]()
    for source in sources:
        text = Path(source).read_text("utf-8-sig")
        trees.Add(csharp.CSharpSyntaxTree.ParseText(text, newest, source))
    known = collections.List[base.MetadataReference]()
    framework = [*FRAMEWORK.glob("System*.dll"), FRAMEWORK / "netstandard.dll"]
    for reference in [*map(str, framework), *filter(None, references)]:
        known.Add(base.MetadataReference.CreateFromFile(reference))
    library = str(out) == str(MANAGED)
    kind = (
        base.OutputKind.DynamicallyLinkedLibrary if library else base.OutputKind.ConsoleApplication
    )
    options = csharp.CSharpCompilationOptions(kind).WithAllowUnsafe(True)
    made = csharp.CSharpCompilation.Create(out.stem, trees, known, options)
    file = importlib.import_module("System.IO").File.Create(str(out))
    done = made.Emit(file)
    file.Dispose()
    if not done.Success:
        out.unlink()
        errors = [d for d in done.Diagnostics if d.Severity == base.DiagnosticSeverity.Error]
        sys.exit("\n".join(error.ToString() for error in errors))


def npm_pack(name: str, folder: Path) -> tarfile.TarFile:
    """Fetch a package of npm; nothing of it is run."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("error: no npm")
    words = [npm, "pack", name, "--silent", "--pack-destination", str(folder)]
    subprocess.run(words, check=True, stdout=subprocess.PIPE)
    (found,) = folder.glob("*.tgz")
    return tarfile.open(found)


def pip(*words: str) -> None:
    """Run pip."""
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    subprocess.run(run, check=True)


def unpack_wheel(name: str, folder: Path, start: str) -> None:
    """Put what a wheel has below `start` into a folder, whatever Python it is for."""
    with tempfile.TemporaryDirectory() as scratch:
        which = ["--no-deps", "--only-binary=:all:", "--python-version=3.11"]
        pip("download", *which, "--platform=manylinux2014_x86_64", "--dest", scratch, name)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder, [n for n in file.namelist() if n.startswith(start)])


def unpack_unity(archive: tarfile.TarFile) -> list[Path]:
    """Put ONNX Runtime's files where they belong; its C# sources."""
    aar = "package/Plugins/Android/onnxruntime.aar"
    library = "package/Plugins/Linux/x64/libonnxruntime.so"
    put: dict[str, Path] = {library: LIBRARY}
    for name in archive.getnames():
        if name.startswith("package/Runtime/") and name.endswith(".cs"):
            put[name] = HOSTS / "csharp" / "sources" / name.removeprefix("package/Runtime/")
    for name, path in put.items():
        write(path, read(archive, name))
    with zipfile.ZipFile(io.BytesIO(read(archive, aar))) as file:
        write(JAR, file.read("classes.jar"))
        write(JNI, file.read("jni/x86_64/libonnxruntime4j_jni.so"))
        for name in file.namelist():
            if name.startswith("headers/") and not name.endswith("/"):
                write(HEADERS / Path(name).name, file.read(name))
    return [path for path in put.values() if path != LIBRARY]


def read(archive: tarfile.TarFile, name: str) -> bytes:
    """One file of an archive."""
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def write(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def install() -> None:
    """Fetch everything, and compile ONNX Runtime's C# sources."""
    shutil.rmtree(HOSTS, ignore_errors=True)
    HOSTS.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch, npm_pack(UNITY, Path(scratch)) as archive:
        sources = unpack_unity(archive)
    with tempfile.TemporaryDirectory() as scratch, npm_pack(ROSLYN, Path(scratch)) as archive:
        for name in archive.getnames():
            if Path(name).name.startswith(("Microsoft.CodeAnalysis", "System.")):
                write(HOSTS / "roslyn" / Path(name).name, read(archive, name))
    unpack_wheel(DOTNET, HOSTS / "dotnet", "dotnetcore2/bin/")
    (DOTNET_ROOT / "dotnet").chmod(0o755)
    unpack_wheel(OPENSSL, OPENSSL_FOLDER.parent, f"{OPENSSL_FOLDER.name}/")
    (ssl,) = OPENSSL_FOLDER.glob("libssl-*.so.1.1")
    (OPENSSL_FOLDER / "libssl.so.1.1").symlink_to(ssl.name)
    pip("install", "--target", str(HOSTS / "python"), PYTHONNET)
    compile_csharp(MANAGED, sources)
    STAMP.touch()


if __name__ == "__main__":
    install()
