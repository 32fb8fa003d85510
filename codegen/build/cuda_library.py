"""Building kernels for NVIDIA GPUs: host code and images for every architecture in one library.

A TIR function becomes host code that launches, and one CUDA source, its *module*. The source is
compiled for each architecture, and as PTX for the newest one, which the driver of a later device
translates:

    detect_scan      sm_80   cubin      runs on 8.x
    detect_scan      sm_90   cubin      runs on 9.x
    detect_scan      sm_90   PTX        runs on 10.0 and later

Whoever loads the library fills the pointers that it exports; through them host code asks for the
kernel of a name and launches it with its arguments and launch numbers. `cuda_tables.c` says how
kernels and images are found.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pitc.codegen.build.cache import Cache
from pitc.codegen.build.cuda_code import Makers, encoded, requested_code
from pitc.codegen.build.cuda_compiler import (
    CudaCompiler,
    CudaModule,
    CudaSourceError,
    arch_number,
    check_target,
)
from pitc.codegen.build.find_cuda import find_cuda_compiler
from pitc.codegen.build.kernel_keys import Key, kept
from pitc.codegen.build.link import Part
from pitc.ir.kernel import KernelRequest

Progress = Callable[[int, int, str], None]

TABLES = Path(__file__).with_name("cuda_tables.c")
_EXPORTS = (
    "__TVMFFI*",
    "__tvm_ffi__library_ctx*",
    "pitc_cuda_kernels",
    "pitc_cuda_kernel_count",
    "pitc_cuda_images",
    "pitc_cuda_image_count",
)


@dataclass(frozen=True, slots=True)
class Image:
    """What a driver loads.

    Args:
        module: Symbol of the TIR function.
        target: `sm_XX` of a cubin, `compute_XX` of PTX.
        content: Its bytes.
    """

    module: str
    target: str
    content: bytes

    @property
    def is_ptx(self) -> bool:
        """Whether it is a text that the driver translates."""
        return self.target.startswith("compute_")


def targets_of(archs: Sequence[str], compiler: CudaCompiler, *, all_ptx: bool = False) -> list[str]:
    """What is compiled for some architectures: cubins, oldest first, then PTX."""
    if not archs:
        raise ValueError("CUDA kernels need at least one function and one architecture")
    numbers = sorted({arch_number(arch) for arch in archs})
    targets = [f"sm_{n}" for n in numbers]
    targets += [f"compute_{n}" for n in (numbers if all_ptx else numbers[-1:])]
    for target in targets:
        check_target(target, compiler)
    return targets


def compile_modules(
    makers: Makers,
    targets: Sequence[str],
    compiler: CudaCompiler,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> tuple[dict[str, CudaModule], list[Image]]:
    """Make modules one by one, and meanwhile their images.

    Args:
        makers: What makes each module, at least one.
        targets: As of `targets_of`.
        compiler: The CUDA compiler.
        progress: Called with (images done, images in all, what is waited for: a function, which
            becomes CUDA text, then each image).
        cache: Where images are, and are kept; None makes all of them.

    Returns:
        Modules by their symbols, and images ordered by symbol and architecture, PTX last.

    Raises:
        CudaSourceError: The compiler refused a source.
        MachineError: The compiler does not work.
        ValueError: There is none to make.
    """
    if not makers:
        raise ValueError("CUDA kernels need at least one function and one architecture")
    modules: dict[str, CudaModule] = {}
    waiting: list[tuple[str, str, Future[bytes]]] = []
    images: list[Image] = []

    def tell(label: str) -> None:
        if progress:
            done = sum(image.done() for _, _, image in waiting)
            progress(done, len(makers) * len(targets), label)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for symbol in sorted(makers):
                tell(symbol)
                modules[symbol] = makers[symbol]()
                for target in targets:
                    source = modules[symbol].source
                    image = pool.submit(_image, compiler, symbol, source, target, cache)
                    waiting.append((symbol, target, image))
            for symbol, target, image in waiting:
                tell(f"{symbol} {target}")
                images.append(Image(symbol, target, image.result()))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return modules, images


def _image(
    compiler: CudaCompiler, symbol: str, source: str, target: str, cache: Cache | None
) -> bytes:
    def make() -> bytes:
        try:
            return compiler.compile(source, target).image
        except CudaSourceError as error:
            raise CudaSourceError(f"{symbol}: {error}") from None

    return kept(cache, Key("image", source, target, compiler.fingerprint), make)


def compile_requests(
    requests: Sequence[KernelRequest],
    archs: Sequence[str],
    progress: Progress | None = None,
    cache: Cache | None = None,
    *,
    all_ptx: bool = False,
) -> tuple[dict[str, CudaModule], list[Image], CudaCompiler]:
    """Compile what answers requests for kernels of NVIDIA GPUs.

    Args:
        requests: Requests for GPUs, at least one.
        archs: Architectures, e.g. `("sm_80", "sm_90")`, at least one.
        progress: As of `compile_modules`, whose errors are those of this function, too.
        cache: Where modules and images are, and are kept; None makes all of them.
        all_ptx: Make PTX for each architecture, not for the newest one only.

    Returns:
        As `compile_modules`, and by what compiler.

    Raises:
        MachineError: There is no CUDA compiler.
        UsageError: An architecture that it does not know.
    """
    compiler = find_cuda_compiler()
    targets = targets_of(archs, compiler, all_ptx=all_ptx)
    makers, missed = requested_code(requests, targets[0], cache)
    modules, images = compile_modules(makers, targets, compiler, progress, cache)
    if cache is not None:
        for key, symbols in missed.items():
            cache.put(key, encoded({symbol: modules[symbol] for symbol in symbols}))
    return modules, images, compiler


def part_of(
    modules: Mapping[str, CudaModule], images: Sequence[Image], compiler: CudaCompiler
) -> Part:
    """What compiled functions add to a library."""
    kernels = [
        f'KERNEL("{kernel}", "{symbol}", "{",".join(tags)}")'
        for symbol, module in modules.items()
        for kernel, tags in sorted(module.launch.items())
    ]
    listed = [
        f'IMAGE({i}, "{x.module}", {arch_number(x.target)}, {int(x.is_ptx)}, {len(x.content)})'
        for i, x in enumerate(images)
    ]
    files = {f"{i}.image": x.content for i, x in enumerate(images)}
    files["cuda_kernels.inc"] = _lines(kernels)
    files["cuda_images.inc"] = _lines(listed)
    objects = {symbol: module.host_object for symbol, module in modules.items()}
    return Part(objects, _EXPORTS, (compiler.version,), TABLES, files)


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
