"""Turn `slots.txt` into C++: the provider's own declaration of the ABI, or static checks of it.

usage: python generate.py header OUT.h     declaration of the slots in use; needs no other header
       python generate.py check OUT.cc     to be compiled against the official onnxruntime_c_api.h
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST_API = 23


@dataclass(frozen=True, slots=True)
class Slot:
    """One function pointer of a table: its place, name, return type and `(parameter types)`.

    `since`: the API that brought it, 0 for one that every supported release has.
    """

    number: int
    name: str
    returns: str
    parameters: str
    since: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """One struct of function pointers.

    Args:
        name: Its C name.
        size: Number of slots if the provider fills it in (slot 0 is then a version), else 0.
        slots: The slots in use, ascending.
        version: The name of slot 0.
    """

    name: str
    size: int
    slots: tuple[Slot, ...]
    version: str = "ort_version_supported"


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Abi:
    """The whole file: enums as (name, ((constant, value), ..)), structs alike, and tables."""

    enums: tuple[tuple[str, Pairs], ...]
    structs: tuple[tuple[str, Pairs], ...]
    tables: tuple[Table, ...]


def parse(text: str) -> Abi:
    """Read the text of `slots.txt`.

    Raises:
        ValueError: A line that is not in the format, or slot numbers that do not ascend.
    """
    enums, structs, tables = [], [], []
    head, *sections = re.split(r"^\[(.*)\]$", re.sub(r"#.*", "", text), flags=re.MULTILINE)
    if head.strip():
        raise ValueError(f"text before the first section: {head.strip()!r}")
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        if title == "enums":
            for line in lines:
                name, *constants = line.split()
                pairs = [tuple(c.split("=")) for c in constants]
                enums.append((name, tuple((k, v) for k, v in pairs)))
            continue
        if title == "structs":
            for line in lines:
                name, *members = line.split()
                pairs = [tuple(m.split(":")) for m in members]
                structs.append((name, tuple((k, v) for k, v in pairs)))
            continue
        slots = []
        for line in lines:
            match = re.fullmatch(r"(\d+) (\w+) ([^(]+)(\(.*\))(?: since (\d+))?", line)
            if not match:
                raise ValueError(f"not a slot: {line!r}")
            slots.append(Slot(int(match[1]), match[2], match[3], match[4], int(match[5] or 0)))
        numbers = [slot.number for slot in slots]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"{title}: slot numbers must ascend")
        name, _, *filled = title.split()
        size = int(filled[0]) if filled else 0
        tables.append(Table(name, size, tuple(slots), *filled[1:]))
    return Abi(tuple(enums), tuple(structs), tuple(tables))


def header(abi: Abi) -> Iterator[str]:
    """Lines of the declaration."""
    yield "// Generated from slots.txt: the slots of ONNX Runtime's C ABI that are in use."
    yield "#pragma once\n#include <cstddef>\n#include <cstdint>"
    yield f"constexpr uint32_t kOrtApiVersion = {OLDEST_API};\ntypedef char ORTCHAR_T;"
    for name, constants in abi.enums:
        yield f"enum {name} {{ {', '.join(f'{k} = {v}' for k, v in constants)} }};"
    known = {name for name, _ in abi.enums}
    used = " ".join(s.returns + s.parameters for table in abi.tables for s in table.slots)
    yield from (f"struct {name};" for name in sorted(set(re.findall(r"\bOrt\w+", used)) - known))
    for name, members in abi.structs:
        yield f"struct {name} {{ {' '.join(f'{kind} {member};' for kind, member in members)} }};"
    for table in abi.tables:
        yield f"struct {table.name} {{"
        at = 0
        if table.size:
            yield f"  uint32_t {table.version};"
            at = 1
        for slot in table.slots:
            if slot.number > at:
                yield f"  void* unused{at}_[{slot.number - at}];"
            yield f"  {slot.returns} (*{slot.name}){slot.parameters};"
            at = slot.number + 1
        if table.size > at:
            yield f"  void* unused{at}_[{table.size - at}];"
        yield "};"


def check(abi: Abi) -> Iterator[str]:
    """Lines of a source file that does not compile when table and official header disagree."""
    yield "// Generated from slots.txt: static checks against the official header."
    yield '#include <cstddef>\n#include <type_traits>\n#include "onnxruntime_c_api.h"'
    yield f'static_assert(ORT_API_VERSION >= {OLDEST_API}, "API {OLDEST_API} or newer is needed");'
    yield "template <class T> struct Type;"
    for suffix in ("", " noexcept"):
        pointer = f"R (*)(A...){suffix}"
        yield f"template <class R, class... A> struct Type<{pointer}> {{ using F = R(A...); }};"
    for name, constants in abi.enums:
        yield from (f'static_assert({k} == {v}, "{name}");' for k, v in constants)
    for name, members in abi.structs:
        yield f"struct Own{name} {{ {' '.join(f'{kind} {m};' for kind, m in members)} }};"
        for kind, member in members:
            same = f"offsetof({name}, {member}) == offsetof(Own{name}, {member})"
            yield f'static_assert({same}, "{name}, {member}");'
            yield f'static_assert(std::is_same_v<decltype({name}::{member}), {kind}>, "{member}");'
        yield f'static_assert(sizeof({name}) == sizeof(Own{name}), "{name}: size");'
    for table in abi.tables:
        for slot in table.slots:
            field = f"{table.name}, {slot.name}"
            signature = f"{slot.returns}{slot.parameters}"
            actual = f"Type<decltype({table.name}::{slot.name})>::F"
            yield f"#if ORT_API_VERSION >= {slot.since}"
            yield f'static_assert(offsetof({field}) == {slot.number} * sizeof(void*), "{field}");'
            yield f'static_assert(std::is_same_v<{actual}, {signature}>, "{field}: type");'
            yield "#endif"
        if table.size:
            size, want = f"sizeof({table.name})", f"{table.size} * sizeof(void*)"
            yield f'static_assert(offsetof({table.name}, {table.version}) == 0, "version");'
            exact = f"ORT_API_VERSION > {OLDEST_API} ? {size} >= {want} : {size} == {want}"
            yield f'static_assert({exact}, "{table.name}: size");'


def main() -> None:
    """Write the file that the command line asks for."""
    kinds = {"header": header, "check": check}
    if len(sys.argv) != 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    abi = parse(Path(__file__).with_name("slots.txt").read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text("\n".join(kinds[sys.argv[1]](abi)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
