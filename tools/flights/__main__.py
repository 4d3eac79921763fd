"""`tools/demo`."""

import sys

from arrowstate.errors import ArrowStateError
from flights.demo import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArrowStateError as error:
        sys.exit(f"tools/demo: {error}")
