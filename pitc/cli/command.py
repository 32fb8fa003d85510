"""What the commands have in common: how they are declared, how usage is shown, and options that may
stand anywhere.
"""

import inspect
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

#: Options of the program that may stand behind a command too; whether a value follows.
ANYWHERE = {"-v": False, "-vv": False, "--verbose": False, "--log-file": True}


#: Options of the panels that help has.
sparsity_option = partial(typer.Option, rich_help_panel="Sparsity")
output_option = partial(typer.Option, rich_help_panel="Output")
inputs_option = partial(typer.Option, rich_help_panel="Inputs")


class Command(TyperCommand):
    """A command whose usage line has no brackets around arguments.

    One that another option makes needless (`--print-config`) is not declared as required, yet the
    rule is to give it.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        first, *rest = super().collect_usage_pieces(ctx)
        return [first, *(piece.strip("[]") for piece in rest)]


def declare(app: typer.Typer, name: str, options: type[Any], action: str) -> None:
    """Make a command of its options; what it does is imported when it runs.

    Args:
        app: What gets the command.
        name: Its name.
        options: A dataclass with a field for each option; its docstring is the command's help, and
            `example` a call of it.
        action: `module.function` in this package, which is called with the options.
    """

    def run(**values: Any) -> None:
        module, function = action.split(".")
        getattr(import_module(f"pitc.cli.{module}"), function)(options(**values))

    run.__doc__ = options.__doc__
    shared = inspect.signature(options.__bases__[0]).parameters  # they come last
    own = inspect.signature(options).parameters.values()
    ordered = [*(x for x in own if x.name not in shared), *shared.values()]
    setattr(run, "__signature__", inspect.Signature(ordered))  # noqa: B010
    app.command(name, cls=Command, epilog=f"Example: {options.example}")(run)


def options_first(words: Sequence[str]) -> list[str]:
    """The words with options of the program in front: `compile m.onnx -v` as `-v compile m.onnx`.

    What stands behind `--` is left where it is.
    """
    front: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            rest += [word, *left]
        elif word.split("=")[0] in ANYWHERE:
            front.append(word)
            if ANYWHERE.get(word):
                front += [value for value in [next(left, None)] if value is not None]
        else:
            rest.append(word)
    return front + rest
