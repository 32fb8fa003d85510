"""Ray Serve: replicas of a compiled model behind one handle: `python ray_serve.py FOLDER`."""

import sys

from encoder import Encoder
from ray import serve


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
class Embed:
    """A replica; requests that come together run as one batch."""

    def __init__(self, folder: str) -> None:
        self._encoder = Encoder(folder, threads=1)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.01)
    async def __call__(self, texts: list[str]) -> list[list[float]]:
        """Embed the texts of several requests."""
        return [row.tolist() for row in self._encoder(texts)]


def app(folder: str) -> serve.Application:
    """What `serve.run` takes."""
    return Embed.bind(folder)


if __name__ == "__main__":
    handle = serve.run(app(sys.argv[1]))
    print(handle.remote("a short text").result()[:4])
