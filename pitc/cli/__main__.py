"""`python -m pitc.cli`."""

import sys

from pitc.cli import main

sys.exit(main())
