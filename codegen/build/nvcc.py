"""nvcc where it is installed: the same interface as NVRTC's, a process for each source."""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from pitc.codegen.build.cuda_compiler import (
    LONGEST_LOG,
    OPTIONS,
    Compiled,
    CudaSourceError,
    check_target,
)
from pitc.errors import MachineError

_FOREIGN = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables by which options get into every call: images would depend on them."""


class Nvcc:
    """An nvcc with its host compiler.

    Args:
        program: The program's path.

    Raises:
        MachineError: It does not work.
    """

    def __init__(self, program: Path) -> None:
        self.path = program
        told = self._run("--version").stdout
        if not (found := re.search(r"\bV(\d+[.\d]*)", told)):
            raise MachineError("nvcc does not tell its version", path=program)
        self.version = f"nvcc-{found[1]}"
        self.fingerprint = "\n".join([self.version, *OPTIONS])
        listed = self._run("--list-gpu-code").stdout
        self.archs = tuple(
            sorted({int(n) for n in re.findall(r"^sm_(\d+)$", listed, re.MULTILINE)})
        )

    def _run(
        self, *arguments: str, folder: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
        try:
            return subprocess.run(
                [str(self.path), *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env=environment,
            )
        except OSError as error:
            raise MachineError(f"nvcc does not start: {error.strerror}", path=self.path) from error

    def compile(self, source: str, target: str) -> Compiled:
        """As `CudaCompiler.compile`."""
        check_target(target, self)
        kind = "-cubin" if target.startswith("sm_") else "-ptx"
        with tempfile.TemporaryDirectory(prefix="pitc-nvcc-") as folder:
            (Path(folder) / "kernels.cu").write_text(source, "utf-8")
            options = (*OPTIONS, f"-arch={target}", kind)
            done = self._run(*options, "kernels.cu", "-o", "image", folder=folder)
            log = (done.stderr + done.stdout).strip()
            if done.returncode:
                # The front end names the place in the source; what fails else is the installation.
                error = CudaSourceError if "kernels.cu(" in log else MachineError
                raise error(f"{self.version} refused a source for {target}:\n{log[:LONGEST_LOG]}")
            return Compiled((Path(folder) / "image").read_bytes(), log)


def find_nvcc() -> Nvcc | None:
    """The nvcc on the PATH, or None.

    Raises:
        MachineError: It does not work.
    """
    program = shutil.which("nvcc")
    return _found(Path(program)) if program else None


_found = functools.cache(Nvcc)
