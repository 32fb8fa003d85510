"""A request for one kernel variant, made by the lowering and answered by codegen."""

from collections.abc import Mapping
from dataclasses import dataclass

from pitc.ir.formula import Formula
from pitc.ir.variants import ITEM_BYTES

CHUNK_BYTES = 16
"""What a GPU's thread copies at a time."""
MOVED_BYTES = (1, 2, 4, 16)
"""Words that pack and unpack move on a GPU."""
_TAGS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

LISTED_QUERIES = 32
"""Queries of attention that share a list of keys: each has one bit of a word."""
MOST_FACTOR, MOST_CONSTANT = 1 << 20, 1 << 60
"""Of tests of positions: what a position is multiplied by, and what is added."""

MASK = 2
"""A `factor` of stored_rows beside a matrix of finite numbers: their product is 0 where it is."""

LONGEST_ROUNDED = 3072
"""Terms of a sum of a product whose result is stored as bfloat16, at most: sums of longer ones wait
in the result."""

ATTENTION_STORED = {"q": "q_words", "k": "k_words", "v": "v_words", "result": "rounds_result"}
"""Parameters of attention, by what is stored as bfloat16."""

KERNEL_ABI = 2
"""What a call of a kernel means: its arguments (`docs/plans.md`). The plug-in checks it."""


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """What a lowered graph needs from codegen, without tiles or targets.

    Args:
        family: `pack`, `unpack`, `gather_gemm`, `contract_row`, `contract_tile`, `contract_block`,
            `panels`, `stored_rows`, `swrite_columns`, `attention`, `attention_grad`,
            `outer_products`, `outer_products_dense`, `norm` or `elementwise`; of GPUs also
            `detect`, `choose`, `lists`, `contract_square`, `group_rows` and `live_points`.
        params: Static parameters, sorted by name: none (pack, unpack, outer_products, group_rows,
            live_points); `k`, `n`, `activation`, `residual` (gather_gemm, contract_*), perhaps,
            of gather_gemm, `bits`, `input_relu`, `left_words`, `rounds_result`, `stored` and
            `factor`, of contract_block of a sampled product `stored`; `k` (panels); `k`, `n`,
            `stored`, `factor` (stored_rows); `n`, `activation`, `residual` (swrite_columns); `d`,
            `dv`, `bias`, perhaps `pairs`, `sink`, `score_cap`, `score_steps` and `weight_steps`, of
            GPUs `sees` (attention, `pitc.ir.seen`); `d`, `dv`, `bias`, perhaps `pairs`, `floor`
            (attention_grad); `n`, `centred`, `bias` (norm); `kinds`, `formula`
            (elementwise, `pitc.ir.formula`). A GPU's kernels have no `k` and `n`,
            but `loose`: rows may start anywhere. gather_gemm has `grouped` where each dense tile
            has a matrix. `detect` has `bits` where a contraction has told
            what is not 0.
        dtype: Type of the elements, or of the words that are moved (`int32`, `int8`); of a mask
            `bool`.
        kind: Of target: `cpu`, or `cuda`.
    """

    family: str
    params: tuple[tuple[str, int | str], ...]
    dtype: str = "float32"
    kind: str = "cpu"

    @classmethod
    def of(
        cls, family: str, dtype: str = "float32", kind: str = "cpu", /, **params: int | str
    ) -> "KernelRequest":
        """Make a request from keyword parameters."""
        return cls(family, tuple(sorted(params.items())), dtype, kind)

    @classmethod
    def of_cuda(cls, family: str, dtype: str, /, **params: int | str) -> "KernelRequest":
        """Make a request for a GPU from parameters of CPUs: sizes only tell where rows start."""
        item, k, n = ITEM_BYTES[dtype], int(params.pop("k", 0)), int(params.pop("n", 0))
        widths = (k, n, *(int(params.get(name, 0)) for name in ("d", "dv")))
        loose = int(any(width * item % CHUNK_BYTES for width in widths))
        return cls.of(family, dtype, "cuda", **params, loose=loose)

    @classmethod
    def of_kind(cls, kind: str, family: str, dtype: str, /, **params: int | str) -> "KernelRequest":
        """Make a request for a kind of target from parameters of CPUs."""
        return (cls.of_cuda if kind == "cuda" else cls.of)(family, dtype, **params)

    @property
    def suits_tiles(self) -> bool:
        """True where a matrix unit can multiply the operands, if they are of bfloat16: all of them.

        Attention under a list of pairs leaves some out, and steps of scores and weights need both
        in the order of keys.
        """
        params = dict(self.params)
        if self.family == "attention":
            return not any(params.get(x) for x in ("pairs", "score_steps", "weight_steps"))
        return self.family == "gather_gemm"

    @property
    def symbol(self) -> str:
        """The kernel's base symbol (`docs/plans.md`), without CPU level."""
        p = dict(self.params)
        if self.kind == "cuda":
            return self._cuda_symbol(p)
        match self.family:
            case "pack" | "unpack":
                return f"{self.family}_b{ITEM_BYTES[self.dtype]}"
            case "gather_gemm" | "contract_row" | "contract_tile" | "contract_block":
                flags = {"_res": p["residual"], "_bits": p.get("bits")}
                flags["_input_relu"] = p.get("input_relu")
                flags["_bf16"] = self.dtype == "bfloat16"
                flags["_left"], flags["_result"] = p.get("left_words"), p.get("rounds_result")
                suffix = "".join(text for text, flag in flags.items() if flag)
                if p.get("stored"):
                    suffix += f"_{p['stored']}" + ("_factor" if p["factor"] else "")
                return f"{self.family}_k{p['k']}_n{p['n']}_{p['activation']}{suffix}"
            case "outer_products" | "outer_products_dense":
                return self.family
            case "elementwise":
                return Formula.of(str(p["kinds"]).split(","), str(p["formula"])).symbol
            case "panels":
                return f"panels_k{p['k']}"
            case "stored_rows":
                suffix = f"_{p['stored']}" + ("", "_factor", "_mask")[int(p["factor"])]
                return f"stored_rows_k{p['k']}_n{p['n']}{suffix}"
            case "swrite_columns":
                suffix = "_res" if p["residual"] else ""
                return f"swrite_columns_n{p['n']}_{p['activation']}{suffix}"
            case "norm":
                flags = {"_centred": p["centred"], "_bias": p["bias"]}
                return f"norm_n{p['n']}" + "".join(x for x, flag in flags.items() if flag)
            case "attention":
                kinds = ("bias", "pairs", "sink", "score_cap", "score_steps", "weight_steps")
                found = [x for x in kinds if p.get(x)]
                found += ["bf16"] if self.dtype == "bfloat16" else []
                found += [name for name, param in ATTENTION_STORED.items() if p.get(param)]
                return "_".join([f"attention_d{p['d']}_v{p['dv']}", *found])
            case "attention_grad":
                found = [x for x in ("bias", "pairs", "floor", "zero") if p.get(x)]
                return "_".join([f"attention_grad_d{p['d']}_v{p['dv']}", *found])
        raise ValueError(f"unknown kernel family {self.family!r}")

    def _cuda_symbol(self, p: Mapping[str, int | str]) -> str:
        if self.family in ("group_rows", "live_points"):
            return self.family
        if self.family == "elementwise":
            return Formula.of(str(p["kinds"]).split(","), str(p["formula"])).symbol
        if self.family in ("pack", "unpack"):
            return f"{self.family}_b{ITEM_BYTES[self.dtype]}"
        name = [self.family]
        if self.family in ("detect", "choose", "lists"):
            name += ["bits"] if p.get("bits") else []
        elif self.family in ("attention", "attention_grad"):
            name += [f"d{p['d']}", f"v{p['dv']}", *(["bias"] if p["bias"] else [])]
            name += [f"sees_{p['sees']}"] if p.get("sees") else []
        else:
            flags = {"res": p["residual"], "bits": p.get("bits"), p.get("stored"): p.get("stored")}
            flags["grouped"] = p.get("grouped")
            name += [str(p["activation"]), *(str(text) for text, flag in flags.items() if flag)]
        return "_".join([*name, *(["loose"] if p["loose"] else []), _TAGS[self.dtype]])
