"""`python -m transformer_cli` is the same as `tfm`."""

import sys

from transformer_cli.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
