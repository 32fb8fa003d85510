"""`pitc cache`: what is kept of earlier compilations, and its end."""

import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from pitc.cli import show
from pitc.cli.output import print_json
from pitc.codegen.build.cache import Cache, Held, kernel_cache
from pitc.errors import MachineError, PitcWarning

if TYPE_CHECKING:
    from pitc.cli.options import CacheClear, CacheInfo


def cache_info(options: "CacheInfo") -> None:
    """`pitc cache info`."""
    cache = kernel_cache()
    held = _held(cache, cache.held)
    if options.json:
        limit = {"limit_bytes": cache.limit_bytes}
        print_json({"kernels": {"folder": str(cache.folder), **asdict(held), **limit}})
    else:
        _show(cache, f"{_told(held)}, at most {show.size(cache.limit_bytes)}")


def clear_cache(options: "CacheClear") -> None:
    """`pitc cache clear`."""
    cache = kernel_cache()
    held = _held(cache, cache.clear)
    if options.json:
        print_json({"kernels": {"folder": str(cache.folder), **asdict(held)}})
    else:
        _show(cache, f"deleted {_told(held)}")


def _held(cache: Cache, look: Callable[[], Held]) -> Held:
    """What a cache holds; what keeps its folder from being used is an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PitcWarning)  # the error says the same
            return look()
    except FileNotFoundError:  # nothing was kept yet
        return Held(0, 0)
    except OSError as error:
        text = f"the cache is not used: {error.strerror or error}"
        raise MachineError(text, path=cache.folder, hint=cache.MEND) from error


def _told(held: Held) -> str:
    pieces = "piece" if held.entries == 1 else "pieces"
    return f"{held.entries} {pieces} of machine code, {show.size(held.bytes)}"


def _show(cache: Cache, text: str) -> None:
    show.console().print(f"{cache.folder}: {text}", markup=False, soft_wrap=True)
