"""`pitc cache`: what is kept of earlier compilations, and its end."""

import warnings
from collections.abc import Callable
from dataclasses import asdict

from pitc.cli import show
from pitc.cli.output import print_json
from pitc.codegen.build.cache import Cache, Held, kernel_cache
from pitc.errors import MachineError, PitcWarning
from pitc.ledger import ledger_cache

#: By its name in JSON: what a cache is made by, what an entry is, and several.
CACHES: dict[str, tuple[Callable[[], Cache], str, str]] = {
    "kernels": (kernel_cache, "piece of machine code", "pieces of machine code"),
    "artifacts": (ledger_cache, "known artifact", "known artifacts"),
}


def cache_info(*, json: bool) -> None:
    """`pitc cache info`."""
    body = {}
    for name, (make, *words) in CACHES.items():
        cache = make()
        held = _held(cache, cache.held)
        limit = {"limit_bytes": cache.limit_bytes}
        body[name] = {"folder": str(cache.folder), **asdict(held), **limit}
        if not json:
            _show(cache, f"{_told(held, *words)}, at most {show.size(cache.limit_bytes)}")
    if json:
        print_json(body)


def clear_cache(*, json: bool) -> None:
    """`pitc cache clear`."""
    body = {}
    for name, (make, *words) in CACHES.items():
        cache = make()
        held = _held(cache, cache.clear)
        body[name] = {"folder": str(cache.folder), **asdict(held)}
        if not json:
            _show(cache, f"deleted {_told(held, *words)}")
    if json:
        print_json(body)


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


def _told(held: Held, one: str, many: str) -> str:
    return f"{held.entries} {one if held.entries == 1 else many}, {show.size(held.bytes)}"


def _show(cache: Cache, text: str) -> None:
    show.console().print(f"{cache.folder}: {text}", markup=False, soft_wrap=True)
