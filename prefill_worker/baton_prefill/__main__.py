"""`python -m baton_prefill FLAGS` is `baton prefill-worker FLAGS`."""

import sys

from baton.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["prefill-worker", *sys.argv[1:]]))
