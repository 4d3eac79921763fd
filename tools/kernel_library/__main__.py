"""Make the library of all kernels: `python -m kernel_library TARGET`, with `tools` and the packages on the path."""

import sys

from kernel_library.building import main

if __name__ == "__main__":
    sys.exit(main())
