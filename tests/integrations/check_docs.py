"""docs/integrations.md: every example runs, in its order, in one process."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


def test_every_example(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("export", "checkpoint"):
        (tmp_path / name).symlink_to(source.with_name(name))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, PAGE.name, "exec"), names)
    np.testing.assert_allclose(names["embeddings"], names["rows"], rtol=0, atol=1e-6)
