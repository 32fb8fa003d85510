"""Ray Data: many texts, some actors, one compiled model in each: `python ray_data.py FOLDER`."""

import sys
from collections.abc import Sequence
from typing import Any

import ray
from encoder import Encoder


class Embed:
    """What an actor holds: it loads the artifact by its path when it starts."""

    def __init__(self, folder: str) -> None:
        self._encoder = Encoder(folder, threads=1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Embed one batch of rows."""
        return batch | {"embedding": self._encoder(list(batch["text"]))}


def embed(folder: str, texts: Sequence[str], actors: int = 2, batch_size: int = 64) -> Any:
    """A dataset with the columns `id`, `text` and `embedding`."""
    rows = ray.data.from_items([{"id": i, "text": text} for i, text in enumerate(texts)])
    return rows.map_batches(
        Embed,
        fn_constructor_args=(folder,),  # a path: sessions are made where they run
        batch_size=batch_size,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    print(embed(sys.argv[1], ["a short text", "another text, which is longer"]).take_all())
