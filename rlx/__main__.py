"""python -m rlx [verb] overrides...: the command line. No verb means train."""

from __future__ import annotations

import sys

from rlx.cli import main

if __name__ == "__main__":
    sys.exit(main())
