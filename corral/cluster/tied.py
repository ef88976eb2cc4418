"""`python -m corral.cluster.tied FD FD MODULE`: run a module in a process that ends with its parent.

An engine that is stopped would not notice that its actor is gone. Only Linux can do this.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    runpy.run_module(sys.argv.pop(), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
