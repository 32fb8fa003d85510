"""An exported graph, compared with its module on inputs other than the example.

Torch's exporter follows the example. A layer of experts that reads which experts the example's
tokens have may be exported with these for all inputs, and answer the example right. So a graph that
chooses by values is run once more. The second input has the sizes of the example, and other tokens:
whole numbers are moved on inside their range, others change their sign.

    input_ids [[5, 9, 2]]  ->  [[9, 5, 6]]       x [0.5, -2]  ->  [-0.5, 2]       mask: as is
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pitc.errors import ModelError

CHOOSING = frozenset(("ArgMax", "ArgMin", "Compress", "NonZero", "TopK", "Unique"))
"""Operators by which a graph chooses."""
MOST_ERROR = 1e-2
"""Of the norm of an output: kernels and the order of sums differ, and half precision rounds."""
_HINT = "write its experts as 'batched_mm' (transformers), or as products of looked-up matrices"


@dataclass(frozen=True, slots=True)
class SecondInput:
    """Runs a module and the graph that was made of it.

    Args:
        torch: The package.
        module: A `torch.nn.Module`, as it was given.
        program: What torch's exporter made of it.
    """

    torch: Any
    module: Any
    program: Any

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run both on a second input, if the graph chooses by values.

        Args:
            args: Example inputs by position.
            kwargs: Example inputs by name.

        Raises:
            ModelError: The graph fails there, or gives other numbers.
        """
        if not any(node.op_type in CHOOSING for node in self.program.model.graph.all_nodes()):
            return
        given, named = self._tree.tree_map(self._moved, (tuple(args), dict(kwargs)))
        want = self._run(given, named)
        if want is None:  # it takes no such input
            return
        graph = f"the graph that torch exports of {type(self.module).__name__}"
        try:
            found = self.program(*given, **named)
        except Exception as error:
            raise ModelError(f"{graph} fails on a second input: {error}", hint=_HINT) from error
        finally:
            self.program.release()
        if len(found) != len(want) or not all(map(self._close, found, want)):
            raise ModelError(f"{graph} answers a second input otherwise than it", hint=_HINT)

    @property
    def _tree(self) -> Any:
        return self.torch.utils._pytree

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The tensors that the module gives; None where it fails."""
        try:
            with self.torch.no_grad():
                made = self.module(*args, **kwargs)
        except Exception:
            return None
        return [x for x in self._tree.tree_leaves(made) if isinstance(x, self.torch.Tensor)]

    def _moved(self, x: Any) -> Any:
        """A tensor with other numbers; flags and masks, and what is no tensor, as they are."""
        if not isinstance(x, self.torch.Tensor) or not x.numel() or x.dtype is self.torch.bool:
            return x
        if x.is_floating_point() or x.is_complex():
            return -x
        low, high = int(x.min()), int(x.max())
        count = high - low + 1
        return x if count <= 2 else low + (x - low + count // 2) % count

    def _close(self, found: Any, want: Any) -> bool:
        if found.shape != want.shape:
            return False
        a, b = (self.torch.nan_to_num(x.double()) for x in (found, want))
        same = bool((self.torch.isnan(found) == self.torch.isnan(want)).all())
        return same and float((a - b).norm()) <= MOST_ERROR * max(float(b.norm()), 1e-6)
