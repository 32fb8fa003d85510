"""`python -m pitc`."""

import sys

from pitc.cli import main

sys.exit(main())
