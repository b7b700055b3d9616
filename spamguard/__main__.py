"""`python -m spamguard`: the same as the console script. Must do nothing when imported: processes of a pool import it again."""

import sys

from spamguard.cli import main

if __name__ == "__main__":
    sys.exit(main())
