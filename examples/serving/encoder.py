"""Texts to embeddings with a compiled model: what the servers beside this file wrap.

`folder` is what `pitc.from_pretrained(.., output=folder)` or `docs/integrations.md` makes: the
tokenizer, and the artifact in `onnx/`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import pitc


class Encoder:
    """Mean of the first output, a last hidden state, over each text's tokens; of length 1.

    Args:
        folder: The model's folder.
        threads: Threads that share one batch.
        longest: Most tokens of a text.
        session: Another session than the compiled model's, to compare with.
    """

    def __init__(
        self, folder: str | Path, threads: int = 1, longest: int = 256, session: Any = None
    ) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(longest)
        self._session = session or pitc.load(Path(folder, "onnx"), threads=threads).session()
        self._hidden = self._session.get_outputs()[0].name
        self._inputs = {i.name for i in self._session.get_inputs()}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts; f32 [len(texts), hidden]."""
        found = self._tokenizer.encode_batch(list(texts))
        ids = np.array([one.ids for one in found], np.int64)
        mask = np.array([one.attention_mask for one in found], np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feeds = {name: feeds[name] for name in self._inputs}
        (hidden,) = self._session.run([self._hidden], feeds)
        total = np.matmul(mask[:, None].astype(np.float32), hidden)[:, 0]  # over live tokens
        return total / np.linalg.norm(total, axis=1, keepdims=True)
