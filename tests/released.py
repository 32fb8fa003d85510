"""What is released, built once and kept by content; bare environments to install it."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock
from packaging.requirements import Requirement

from pitc.ir.digest import joint_sha256
from tools.parts import COMPILER, ROOT, RUNTIME, project, write_tree
from tools.wheel import PLATFORMS, build_all

KEPT = ROOT / "build" / "released"


def released() -> Path:
    """A folder with both source archives and their wheels for this platform."""
    parts: list[bytes | str] = [importlib.metadata.version("ziglang")]
    with tempfile.TemporaryDirectory() as scratch:
        for name in (RUNTIME, COMPILER):
            tree = write_tree(name, Path(scratch, name))
            for path in sorted(p for p in tree.rglob("*") if p.is_file()):
                parts += [str(path.relative_to(scratch)), path.read_bytes()]
    for path in sorted((ROOT / "tools").glob("*.py")):
        parts.append(path.read_bytes())
    folder = KEPT / joint_sha256(parts)[:16]
    KEPT.mkdir(parents=True, exist_ok=True)
    with FileLock(KEPT / ".lock"):
        if not folder.exists():
            shutil.rmtree(KEPT / "making", ignore_errors=True)
            for old in KEPT.glob("?" * 16):
                shutil.rmtree(old)
            build_all(KEPT / "making", [PLATFORMS["x86_64"]])
            (KEPT / "making").rename(folder)
    return folder


def one(folder: Path, pattern: str) -> Path:
    """The one file of that name."""
    (found,) = folder.glob(pattern)
    return found


def requirements(distribution: str) -> list[str]:
    """Packages of others that a distribution of ours needs, with what those need, by name."""
    pending = list(project(distribution)["project"]["dependencies"])
    found: dict[str, None] = {}
    while pending:
        requirement = Requirement(pending.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in (*found, RUNTIME):
            found[requirement.name] = None
            pending += importlib.metadata.requires(requirement.name) or []
    return list(found)


class Bare:
    """An environment that has nothing but some packages of this one, as links.

    pip sees those as installed, so it refuses a wheel of ours that needs anything else.

    Args:
        folder: Where to make it.
        packages: Names of distributions.
    """

    def __init__(self, folder: Path, packages: list[str]) -> None:
        self.folder, self.python = folder, folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (site,) = folder.glob("lib/python*/site-packages")
        self.site = site
        for name in packages:
            distribution = importlib.metadata.distribution(name)
            for file in distribution.files or ():
                top = file.parts[0]
                if top not in ("..", "__pycache__") and not (site / top).exists():
                    (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())

    def pip(self, *arguments: str | Path) -> str:
        """Run this environment's pip for that one, without any index."""
        command = ["-m", "pip", "--disable-pip-version-check", "--python", self.python]
        return self._run([sys.executable, *command, *arguments])

    def run(self, *arguments: str | Path, folder: Path | None = None) -> str:
        """What a program of the environment prints; it must succeed."""
        return self._run([self.python, "-P", *arguments], folder or self.folder)

    def script(self, name: str, *arguments: str) -> str:
        """What an installed command of the environment prints; it must succeed."""
        return self._run([self.folder / "bin" / name, *arguments], self.folder)

    def _run(self, command: list[str | Path], folder: Path | None = None) -> str:
        ours = ("PYTHONPATH", "PITC_EP_LIBRARY", "PIP_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        done = subprocess.run(
            [str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout
