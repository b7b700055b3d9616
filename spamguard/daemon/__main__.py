"""A child of the master (`children.run_child`)."""

import sys

from spamguard.daemon.children import run_child

sys.exit(run_child(*sys.argv[1:]))
