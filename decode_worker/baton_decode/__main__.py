"""`python -m baton_decode FLAGS` is `baton decode-worker FLAGS`."""

import sys

from baton.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["decode-worker", *sys.argv[1:]]))
