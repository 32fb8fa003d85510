"""`pitc cache`: what is kept of compiled kernels, and its end."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from pitc.cli import show
from pitc.cli.output import print_json
from pitc.codegen.build.cache import Cache, Held, kernel_cache
from pitc.errors import MachineError, PitcWarning


def cache_info(*, json: bool) -> None:
    """`pitc cache info`."""
    cache = kernel_cache()
    with _readable(cache):
        held = _held(cache.held)
    body = {"folder": str(cache.folder), **asdict(held), "limit_bytes": cache.limit_bytes}
    if json:
        print_json(body)
    else:
        _show(cache, f"{_told(held)}, at most {show.size(cache.limit_bytes)}")


def clear_cache(*, json: bool) -> None:
    """`pitc cache clear`."""
    cache = kernel_cache()
    with _readable(cache):
        held = _held(cache.clear)
    if json:
        print_json({"folder": str(cache.folder), **asdict(held)})
    else:
        _show(cache, f"deleted {_told(held)}")


@contextmanager
def _readable(cache: Cache) -> Iterator[None]:
    """What keeps the folder from being used, as an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PitcWarning)  # the error says the same
            yield
    except OSError as error:
        text = f"the kernel cache is not used: {error.strerror or error}"
        raise MachineError(text, path=cache.folder, hint=cache.MEND) from error


def _held(look: Callable[[], Held]) -> Held:
    try:
        return look()
    except FileNotFoundError:  # nothing was kept yet
        return Held(0, 0)


def _told(held: Held) -> str:
    return (
        f"{held.entries} piece{'s' * (held.entries != 1)} of machine code, {show.size(held.bytes)}"
    )


def _show(cache: Cache, text: str) -> None:
    show.console().print(f"{cache.folder}: {text}", markup=False, soft_wrap=True)
