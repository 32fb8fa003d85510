"""Defaults of compile options: flag > environment `PITC_*` > file > built-in default.

The file is `pitc.toml`, or the table `[tool.pitc]` of `pyproject.toml`: the nearest one at or above
the current folder; in one folder, `pitc.toml` goes first. Keys are the long flags without dashes in
front: `target`, `padding`, `precision`, `tiles`, `output`, `dump-ir`, `report`, `quiet`.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pitc.errors import UsageError
from pitc.options import PRECISIONS, parse_target

FILE, PROJECT_FILE, TABLE = "pitc.toml", "pyproject.toml", "tool.pitc"
PREFIX = "PITC_"
DEFAULT = "default"


class Defaults(BaseModel):
    """What a file or the environment may set. An empty text unsets an option.

    A file's paths start at the file's folder, those of the environment at the current one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str | None = "auto"
    padding: str | None = None
    precision: str | None = "float32"
    tiles: str | None = None
    output: str | None = None
    dump_ir: str | None = Field(default=None, alias="dump-ir")
    report: str | None = None
    quiet: bool | None = False

    @field_validator("target")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value:
            try:
                parse_target(value)
            except UsageError as error:
                raise ValueError(error.message) from error
        return value

    @field_validator("precision")
    @classmethod
    def _is_precision(cls, value: str | None) -> str | None:
        if value and value not in PRECISIONS:
            raise ValueError(f"known: {', '.join(PRECISIONS)}")
        return value


BUILT_IN: dict[str, str | bool | None] = Defaults().model_dump()
PATHS = frozenset({"tiles", "output", "dump_ir", "report"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that is in force.

    Args:
        value: Its value; None when it is unset.
        origin: `flag --target`, `environment PITC_TARGET`, the file, or `default`.
    """

    value: str | bool | None
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All compile options that are in force, by name (`dump_ir`)."""

    by_name: Mapping[str, Setting]

    def text(self, name: str) -> str | None:
        """A text option."""
        value = self.by_name[name].value
        return value if isinstance(value, str) else None

    def path(self, name: str) -> Path | None:
        """A path option."""
        value = self.text(name)
        return Path(value) if value is not None else None

    @property
    def target(self) -> str:
        """The target; never unset."""
        return self.text("target") or str(BUILT_IN["target"])

    @property
    def precision(self) -> str:
        """What products compute with; never unset."""
        return self.text("precision") or PRECISIONS[0]

    @property
    def quiet(self) -> bool:
        """True when no progress is shown."""
        return self.by_name["quiet"].value is True

    def toml(self) -> str:
        """Every option with its origin, as a file that can be used as `pitc.toml`."""
        lines = []
        for name, setting in self.by_name.items():
            key = key_of(name)
            # JSON strings and booleans are TOML, too
            text = json.dumps(setting.value, ensure_ascii=False)
            line = f"# {key} is not set" if setting.value is None else f"{key} = {text}"
            lines.append((line, setting.origin))
        wide = max(len(line) for line, _ in lines)
        return "".join(f"{line.ljust(wide)}  # {origin}\n" for line, origin in lines)


def key_of(name: str) -> str:
    """An option's key in files and, after `--`, on the command line."""
    return name.replace("_", "-")


def resolve(flags: Mapping[str, object], start: Path | None = None) -> Settings:
    """Find the value of every compile option, and where it comes from.

    Args:
        flags: Options of the command line by name; None for those that were not given.
        start: Folder where the search for a file begins; None for the current one.

    Raises:
        UsageError: A file or variable has an unknown key or a value of the wrong kind.
    """
    given = {n: v if isinstance(v, bool) else str(v) for n, v in flags.items() if v is not None}
    variables = _environment()
    file = find_file(start or Path.cwd())
    stored = read_file(file) if file else {}
    found: dict[str, Setting] = {}
    for name, default in BUILT_IN.items():
        value, origin = default, DEFAULT
        if name in given:
            value, origin = given[name], f"flag --{key_of(name)}"
        elif name in variables:
            value, origin = variables[name], f"environment {_variable(name)}"
        elif name in stored:
            value, origin = stored[name], str(file)
        found[name] = Setting(default if value == "" else value, origin)
    return Settings(found)


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _environment() -> dict[str, Any]:
    """Options that the environment sets."""
    found: dict[str, Any] = {}
    for name in BUILT_IN:
        text = os.environ.get(_variable(name))
        if text is None or (text == "" and name == "quiet"):
            continue
        try:
            parsed = Defaults.model_validate({key_of(name): text})
        except ValidationError as error:
            raise UsageError(f"environment {_variable(name)}: {_reason(error)}") from error
        found[name] = getattr(parsed, name)
    return found


def find_file(start: Path) -> Path | None:
    """The nearest `pitc.toml`, or `pyproject.toml` with the table, at or above a folder."""
    for folder in (start.absolute(), *start.absolute().parents):
        if (folder / FILE).is_file():
            return folder / FILE
        project = folder / PROJECT_FILE
        if project.is_file() and _table(project) is not None:
            return project
    return None


def _table(path: Path) -> Mapping[str, Any] | None:
    """The options in a file, unchecked; None for a project file without the table."""
    try:
        body = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"is not TOML: {error}", path=path) from error
    if path.name == FILE:
        return body
    tool = body.get("tool")
    table = tool.get("pitc") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"key '{TABLE}': expected a table", path=path)
    return table


def read_file(path: Path) -> dict[str, Any]:
    """Options of a file by name, checked; its paths start at its folder.

    Raises:
        UsageError: It is no TOML, or has an unknown key or a value of the wrong kind.
    """
    body = _table(path) or {}
    try:
        parsed = Defaults.model_validate(body, strict=True)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        where = key if path.name == FILE else f"{TABLE}.{key}"
        raise UsageError(f"key '{where}': {_reason(error)}", path=path) from error
    out = {name: getattr(parsed, name) for name in parsed.model_fields_set}
    for name in PATHS & out.keys():
        out[name] = str(path.parent / out[name]) if out[name] else out[name]
    return out


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        return f"it is not an option; options: {', '.join(map(key_of, BUILT_IN))}"
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    seen = "" if first["type"] == "value_error" else f", found {first['input']!r}"
    return f"{text}{seen}"
