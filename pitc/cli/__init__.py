"""The command line: `pitc compile`, `run`, `verify`, `bench`, `explain`, `inspect`, `doctor`.

app.py       commands and options; imports typer and rich only
actions.py   what each command does
bench.py     what `bench` does
plot.py      its picture
show.py      tables and text for people
steps.py     numbered progress
"""

import os
import sys
import traceback
from collections.abc import Sequence

from pitc.errors import PitcError

BUG, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None for those of this process.

    Returns:
        The exit code (`docs/errors.md`).
    """
    from pitc.cli.app import app

    try:
        code = app(args=arguments, prog_name="pitc", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # the parser has swallowed the KeyboardInterrupt
            return _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except PitcError as error:
        return _fail(str(error), error.exit_code)
    except (BrokenPipeError, SystemExit):  # the parser turns the first into the second
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0  # the reader of our output has gone; not worth a word
    except MemoryError:
        return _fail("out of memory", 6)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if type(error).__name__ == "Abort":
            return _fail("interrupted", INTERRUPTED)
        describe = getattr(error, "format_message", None)
        if describe is not None:  # a usage error of the command line parser
            command = getattr(getattr(error, "ctx", None), "command_path", "pitc")
            text = " ".join(describe().split()).rstrip(".")
            return _fail(f"{text} (see {command} --help)", USAGE)
        traceback.print_exc()
        return _fail("this is a bug in pitc; please report it with the text above", BUG)


def _fail(text: str, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {text}", file=sys.stderr)
    return code
