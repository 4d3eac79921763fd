"""`python -m arrowstate`: the command line."""

import sys

from arrowstate.cli import main

sys.exit(main())
