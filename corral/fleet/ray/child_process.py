"""`python -m corral.fleet.ray.child_process ARGUMENT... MODULE`: run a module in a process that ends with its
parent.

An engine that is stopped would not notice that its actor is gone. Linux ends it; on other systems a thread
looks, which a stopped process does not have.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0


def tied_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "corral.fleet.ray.child_process", *arguments, module]


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module(sys.argv.pop(), run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
