"""Entry of `python -m benchmarks.gpu`."""

import sys

from benchmarks.gpu.program import main

if __name__ == "__main__":
    sys.exit(main())
