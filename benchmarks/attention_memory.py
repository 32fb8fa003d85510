"""What one call of attention over a long sequence needs beyond its inputs and its output.

It is measured in a process of its own that may not have more than some address space, so that a
model that holds all scores fails there instead of taking the machine's memory.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attention_cases import AttentionMemoryCase
from benchmarks.attention_work import attention_feeds, attention_model
from benchmarks.sessions import process
from models.attention_reference import attention_reference

Say = Callable[[str], None]

MOST_SPACE = 16 << 30  # bytes of address space, libraries included
WARM, ROWS = 64, 16  # tokens of the first call, and rows whose answers are checked
TOLERANCE = 1e-5  # norm-wise, of these rows

# Arguments: compiled folder, inputs of a short and of the long call (.npz), rows, answers (.npy),
# bytes of address space. Writing 5 to clear_refs sets the peak to what is resident now.
_MEASURE = """
import json, resource, sys
import numpy as np
import onnxruntime
import pitc

folder, short, long, rows, answers, most = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))

def status(field):
    (line,) = [x for x in open("/proc/self/status") if x.startswith(field)]
    return int(line.split()[1]) * 1024

options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
session = pitc.load(folder).session(options)
session.run(["y"], dict(np.load(short)))
feeds = dict(np.load(long))
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
try:
    (y,) = session.run(["y"], feeds)
except Exception as error:
    print(json.dumps({"failed": str(error).split(" Status Message")[0].split(" : ")[-1]}))
    sys.exit()
peak = status("VmHWM") - before - y.nbytes
np.save(answers, y[:, json.loads(rows)])
print(json.dumps({"peak_bytes": peak}))
"""


def measure_memory(case: AttentionMemoryCase, cores: set[int], say: Say = print) -> dict[str, Any]:
    """Measure one case.

    Args:
        case: The mask and its sizes.
        cores: Where the process runs.
        say: Called with one line per step.

    Returns:
        `memory`: `peak_bytes`, growth of the resident set in the call beyond its output, None where
        it failed, and `failed`, why; `error` of some rows, norm-wise; `dense_bytes`, what the
        scores of all pairs take; `met`.
    """
    import pitc

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"{case.name}: build and compile the model")
        pitc.compile(attention_model(case)).save(folder / "model.pitc")
        feeds = attention_feeds(case)
        np.savez(folder / "short.npz", allow_pickle=False, **attention_feeds(_short(case)))
        np.savez(folder / "long.npz", allow_pickle=False, **feeds)
        chosen = np.linspace(0, case.length - 1, min(ROWS, case.length)).astype(np.intp)
        files = [str(folder / part) for part in ("model.pitc", "short.npz", "long.npz")]
        arguments = [*files, json.dumps(chosen.tolist()), str(folder / "y.npy"), str(MOST_SPACE)]
        found: dict[str, Any] = {
            "peak_bytes": None,
            "error": None,
            "failed": "",
            "dense_bytes": case.heads * case.length**2 * 4,
        }
        say(f"{case.name}: one call")
        found |= json.loads(process([sys.executable, "-c", _MEASURE, *arguments], cores))
        if found["failed"]:
            space = f"with {MOST_SPACE / 2**30:.0f} GiB of address space"
            found["failed"] = f"{space}: {found['failed']}"
            return {"memory": found | {"met": False}}
        want = attention_reference(case.config, feeds, chosen)
        got = np.load(folder / "y.npy")
        found["error"] = float(np.linalg.norm(got - want) / np.linalg.norm(want))
        met = found["peak_bytes"] <= case.most_bytes and found["error"] <= TOLERANCE
        return {"memory": found | {"met": met}}


def _short(case: AttentionMemoryCase) -> AttentionMemoryCase:
    return replace(case, length=min(WARM, case.length))
