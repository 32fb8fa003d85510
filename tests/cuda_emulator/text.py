"""The text pass: what makes the text of CUDA kernels C++.

Inline PTX becomes calls, shared arrays become places in one window, and each kernel gets a counter:

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(d) : "l"(p) : "memory");
    ptx_ld_acquire_gpu_global<uint32_t>(d, p);

    __shared__ alignas(64) float s[128];
    float (&s)[128] = *(float(*)[128])emulator::Shared(0, sizeof(float) * 128);

All else stays, and stays on its line.
"""

import re
from dataclasses import dataclass

_KERNEL = re.compile(
    r"__global__ void (?:__launch_bounds__\(\d+(?:, *\d+)?\) )?(\w+)\(([^)]*)\)\s*\{"
)
_ASM = re.compile(r"\b(?:__asm__|asm)\b\s*(?:__volatile__|volatile)?\s*\(")
_PREDICATED = re.compile(
    r"\{ \.reg \.pred (\w+); setp\.ne\.b32 \1, %(\d+), 0; @\1 (.*?);? \}", re.DOTALL
)
_DYNAMIC = re.compile(r"extern __shared__ (?:(?:__align__|alignas)\(\d+\) )?([\w ]+) (\w+)\[\];")
_STATIC = re.compile(r"__shared__ (?:(?:__align__|alignas)\(\d+\) )?([\w ]+) (\w+)\[(\d+)\];")
_OPERAND = re.compile(r"\[%(\d+) *\+ *(-?\d+)\]|%(\d+)|(?<![\w.])(-?\d+)\b")
_TYPED = re.compile(r"((?:ld|st|atom|red)\..+)\.([usbf]\d+)")
_TYPES = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{"f16": "half", "f32": "float", "f64": "double"},
}

_MAKE_HALVES = re.compile(r"__host__ __device__ (\w+4 make_\w+4\()")
_HALVES = "struct __align__(8) half4_bfloat164 {"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a CUDA source, as text."""

    name: str
    parameters: str
    body: str

    @property
    def kinds(self) -> list[str]:
        """The types of its parameters, without `__restrict__`."""
        kinds = [p.strip().rsplit(" ", 1)[0] for p in self.parameters.split(",") if p.strip()]
        return [kind.replace("__restrict__", "").strip() for kind in kinds]


def kernels(source: str) -> list[Kernel]:
    """The kernels of a CUDA source, in order."""
    return [
        Kernel(found[1], found[2], source[found.end() - 1 : _end(source, found.end())])
        for found in _KERNEL.finditer(source)
    ]


def _end(text: str, at: int) -> int:
    """The place behind the bracket that closes the one before `at`; in strings they are paired."""
    depth = 1
    while depth:
        depth += (text[at] in "({") - (text[at] in ")}")
        at += 1
    return at


def _split(text: str, mark: str) -> list[str]:
    """Split at a mark that stands outside brackets and strings."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += not quoted and (c in "([{") - (c in ")]}")
        if c == mark and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _call(text: str, values: list[str]) -> str:
    """One instruction: `a.b.c {%0}, [%1], 16` with the values x, y is `ptx_a_b_c(x, y, 16)`."""
    name, _, rest = text.strip().rstrip(";").partition(" ")
    name = re.sub(r"\.L2::\d+B", "", name)  # a hint
    typed = _TYPED.fullmatch(name)
    function = re.sub(r"[.:]+", "_", typed[1] if typed else name)
    if typed:
        function += f"<{_TYPES[typed[2]]}>"
    arguments = []
    for base, offset, operand, number in _OPERAND.findall(rest):
        value = f"emulator::Offset({values[int(base)]}, {offset})" if base else number
        arguments.append(values[int(operand)] if operand else value)
    return f"ptx_{function}({', '.join(arguments)})"


def _assembly(text: str) -> str:
    """What stands between the parentheses of `asm`, as a call."""
    template, *operands = _split(text, ":")
    code = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)).replace("\\n", " ").strip()
    items = [item for group in operands[:2] for item in _split(group, ",") if item.strip()]
    values = [re.sub(r'^\s*"[^"]*"\s*\((.*)\)\s*$', r"\1", item, flags=re.DOTALL) for item in items]
    if found := _PREDICATED.fullmatch(code):
        return f"if ({values[int(found[2])]}) {_call(found[3], values)}"
    return _call(code, values)


def translate(source: str) -> str:
    """The same source as C++ behind `device_code.h`, line by line."""
    out, at = [], 0
    for found in _ASM.finditer(source):
        end = _end(source, found.end())
        assembly = source[found.end() : end - 1]
        out += [source[at : found.start()], _assembly(assembly), "\n" * assembly.count("\n")]
        at = end
    text = "".join(out) + source[at:]
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)emulator::Shared(-1, 0);", text)
    # TVM's own vector of four halves; what a function returns into memory would not be seen.
    text = text.replace(_HALVES, f"{_HALVES} ASSIGNED(half4_bfloat164)")
    text = _MAKE_HALVES.sub(r"EMULATED \1", text)
    numbers = iter(range(len(text)))
    text = _STATIC.sub(
        lambda m: (
            f"{m[1]} (&{m[2]})[{m[3]}] = "
            f"*({m[1]}(*)[{m[3]}])emulator::Shared({next(numbers)}, sizeof({m[1]}) * {m[3]});"
        ),
        text,
    )

    return _KERNEL.sub(r"\g<0> emulator::Fmas emulated_fmas;", text)


def entry(kernel: Kernel) -> str:
    """The function by which a kernel is launched."""
    values = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(kernel.kinds))
    return (
        f'extern "C" APART void emulated_{kernel.name}(void** a) {{ {kernel.name}({values}); }}\n'
    )
