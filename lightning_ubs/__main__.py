"""``python -m lightning_ubs``: the same as the command ``lightning-ubs``."""

import sys

from lightning_ubs.cli import main

if __name__ == "__main__":
    sys.exit(main())
