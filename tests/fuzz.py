"""Longer runs of the fuzzers that the tests run for a moment: `python -m tests.fuzz SECONDS`."""

import os
import subprocess
import sys
import time

from tests.runtime_support import ROOT, build

FUZZERS = ("plan_fuzz", "node_fuzz", "micro_tiles_fuzz")
EXAMPLES = 100  # times as many hostile models as the test suite tries


def main(seconds: int) -> int:
    """Run every fuzzer, the plug-in's for so many seconds each; 0 where none finds anything."""
    folder, seed = build("asan", *FUZZERS) / "tests", int(time.time())
    codes = []
    for name in FUZZERS:
        print(name, flush=True)
        options = [f"-max_total_time={seconds}", "-runs=1000000000", f"-seed={seed}"]
        plans = ("plans", "cuda_plans") if name == "plan_fuzz" else ("plans",)
        seeds = [str(ROOT / "runtime" / "tests" / part) for part in plans]
        codes.append(subprocess.run([str(folder / name), *options, *seeds], check=False).returncode)
    print("hostile models and manifests", flush=True)
    environment = {**os.environ, "PITC_FUZZ": str(EXAMPLES)}
    names = ("test_fuzz_importer.py", "test_fuzz_manifest.py")
    files = [str(ROOT / "tests" / "plugin" / name) for name in names]
    models = [sys.executable, "-m", "pytest", "-q", *files]
    codes.append(subprocess.run(models, env=environment, cwd=ROOT, check=False).returncode)
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
