"""The command line: `pitc compile`, `run`, `verify`, `bench`, `explain`, `inspect`, `export`,
`tune`, `cache`, `doctor`.

app.py       the commands; options.py: their options. They import typer and rich only
command.py   what every command has; log.py: -v and --log-file
compile.py, run.py, verify.py, bench.py, explain.py, inspect.py, export.py, tiles.py (tune),
cache.py     what each does
models.py    models, artifacts and inputs that they are given
show.py, show_race.py, show_model.py    tables and text for people
output.py    JSON for programs, warnings
plot.py      pictures; reports are `pitc.report`'s
steps.py     numbered progress
"""

import io
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from pitc.cli.log import end_log
from pitc.errors import PitcError, one_line

BUG, USAGE, MACHINE = 1, 2, 6
#: What stops a command, and the words for it; its exit code is 128 and the signal's number.
STOPS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "the terminal has gone",
}
INTERRUPTED = 128 + signal.SIGINT
_WORDS: ContextVar[Sequence[str]] = ContextVar("words", default=())
_log = logging.getLogger("pitc.cli")


def command_line() -> str:
    """The command that runs, as a shell takes it."""
    return shlex.join(["pitc", *_WORDS.get()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None for those of this process.

    Returns:
        The exit code (`docs/errors.md`).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    words = _WORDS.set(sys.argv[1:] if arguments is None else arguments)
    try:
        with _stoppable() as received:
            code = _run(arguments)
    finally:
        end_log()
        _WORDS.reset(words)
    if code == INTERRUPTED:
        stop = received[0] if received else signal.SIGINT
        return _fail(STOPS[stop], 128 + stop)
    return code


@contextmanager
def _stoppable() -> Iterator[list[signal.Signals]]:
    """Every signal that stops a command unwinds it like Ctrl-C, so that it leaves nothing behind.

    Yields:
        A list that gets the signal. Later ones are ignored: they would only break the clean-up.
    """
    received: list[signal.Signals] = []

    def stop(number: int, _: FrameType | None) -> None:
        for other in taken:
            signal.signal(other, signal.SIG_IGN)
        received.append(signal.Signals(number))
        raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()  # no other may set handlers
    defaults = (signal.SIG_DFL, signal.default_int_handler)  # nohup ignores one: so do we
    taken = {n: old for n in STOPS if ours and (old := signal.getsignal(n)) in defaults}
    try:
        for number in taken:
            signal.signal(number, stop)
        yield received
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line; all that was raised is shown, but for interruptions."""
    from pitc.cli.app import app
    from pitc.cli.command import options_first

    words = options_first(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, prog_name="pitc", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PitcError as error:
        return _fail(str(error), error.exit_code)
    except (BrokenPipeError, SystemExit):  # the parser turns the first into the second
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of our output has gone; not worth a word
    except MemoryError as error:
        return _fail(": ".join(["out of memory", *map(str, error.args)]), MACHINE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        describe = getattr(error, "format_message", None)
        if describe is not None:  # a usage error of the command line parser
            command = getattr(getattr(error, "ctx", None), "command_path", "pitc")
            text = one_line(describe()).rstrip(".")
            if not text:  # no argument: help was shown
                return USAGE
            return _fail(f"{text} (see {command} --help)", USAGE)
        traceback.print_exc()
        _log.debug("a bug in pitc", exc_info=True)
        return _fail("this is a bug in pitc; please report it with the text above", BUG)


def _fail(text: str, code: int) -> int:
    sys.stdout.flush()
    if _log.isEnabledFor(logging.INFO):
        _log.info("exit code %d: %s", code, text)
    print(f"error: {text}", file=sys.stderr)
    return code
