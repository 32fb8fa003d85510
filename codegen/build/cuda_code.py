"""CUDA text and host code of what answers requests for GPUs, from the cache or made by TVM."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pitc.codegen.build.cache import Cache
from pitc.codegen.build.cuda_compiler import CudaModule
from pitc.codegen.build.kernel_keys import Key, generator
from pitc.ir.kernel import KernelRequest

Makers = Mapping[str, Callable[[], CudaModule]]
"""What makes the module of each symbol."""


def makers_of(functions: Sequence[Any], arch: str) -> Makers:
    """What makes the module of each of some TIR functions.

    Raises:
        ValueError: Two functions of one symbol.
    """
    symbols = [str(f.attrs["global_symbol"]) for f in functions]
    if twice := sorted({s for s in symbols if symbols.count(s) > 1}):
        raise ValueError(f"several functions are called {', '.join(twice)}")
    return {s: partial(module_of, f, arch) for s, f in zip(symbols, functions, strict=True)}


def module_of(function: Any, arch: str) -> CudaModule:
    """The module of one TIR function; `arch` is the oldest device."""
    from pitc.codegen.build.cuda_module import cuda_module

    return cuda_module([function], arch)


def requested_code(
    requests: Iterable[KernelRequest], arch: str, cache: Cache | None
) -> tuple[dict[str, Callable[[], CudaModule]], dict[str, list[str]]]:
    """What makes, or knows, the modules of all functions that answer some requests.

    Where all are in the cache, TVM is not loaded.

    Args:
        requests: Requests for GPUs.
        arch: The oldest device.
        cache: Where modules are kept; None makes all of them.

    Returns:
        By symbol what makes its module; and symbols by the keys that the cache lacks.
    """
    made_by = generator()
    makers: dict[str, Callable[[], CudaModule]] = {}
    missed: dict[str, list[str]] = {}
    for request in requests:
        key = Key("code", request, arch, made_by).name if made_by else ""
        known = cache.get(key) if cache is not None and key else None
        if known is not None:
            makers |= {s: partial(_same, module) for s, module in decoded(known).items()}
            continue
        found = _made_now(request, arch)
        makers |= found
        if key:
            missed[key] = list(found)
    return makers, missed


def _made_now(request: KernelRequest, arch: str) -> Makers:
    from pitc.codegen.build.cuda_functions import functions_of

    return makers_of(functions_of([request]), arch)


def _same(module: CudaModule) -> CudaModule:
    return module


def encoded(modules: Mapping[str, CudaModule]) -> bytes:
    """Modules by their symbols, as a cache keeps them."""
    body = {
        symbol: [m.source, b64encode(m.host_object).decode(), dict(m.launch)]
        for symbol, m in modules.items()
    }
    return json.dumps(body).encode()


def decoded(content: bytes) -> dict[str, CudaModule]:
    """The modules that `encoded` has written."""
    return {
        symbol: CudaModule(source, b64decode(code), {k: tuple(tags) for k, tags in launch.items()})
        for symbol, (source, code, launch) in json.loads(content).items()
    }
