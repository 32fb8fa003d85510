"""How much memory a model takes, in a process of its own, from before loading to after a run."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

# Arguments: model file or artifact folder, inputs by place (.npz), their names (JSON).
_MEASURE = """
import json, os, sys
import numpy as np
import pitc
from pitc.measure.bench import session_options
from pitc.session import plain_session

def resident(field):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(field)]
    return int(line.split()[1]) * 1024

path, arrays = sys.argv[1], np.load(sys.argv[2])
feeds = {name: arrays[str(i)] for i, name in enumerate(json.loads(sys.argv[3]))}
options = session_options()
before = resident("VmRSS")
compiled = os.path.isdir(path)
session = pitc.load(path).session(options) if compiled else plain_session(path, options)
session.run(None, feeds)
print(json.dumps(resident("VmHWM") - before))
"""


def peak_bytes(model: Path, feeds: Mapping[str, np.ndarray]) -> int | None:
    """Growth of the resident set of a process that loads a model and runs it once.

    Args:
        model: An ONNX file, or an artifact.
        feeds: Its inputs.

    Returns:
        Bytes; None where the system does not tell, or inputs cannot be passed on.
    """
    if not Path("/proc/self/status").is_file() or any(x.dtype.hasobject for x in feeds.values()):
        return None
    with tempfile.TemporaryDirectory(prefix="pitc-memory-") as folder:
        inputs = Path(folder, "feeds.npz")
        arrays = {str(i): x for i, x in enumerate(feeds.values())}  # names may be any text
        np.savez(inputs, allow_pickle=False, **arrays)
        words = [str(model), str(inputs), json.dumps(list(feeds))]
        command = [sys.executable, "-c", _MEASURE, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(json.loads(done.stdout)) if done.returncode == 0 else None
