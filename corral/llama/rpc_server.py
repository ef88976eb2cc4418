"""`python -m corral.llama.rpc_server HOST:PORT N_THREADS [DEVICE,...]`: offer devices to `--rpc` of others.

ggml's own server: it has no authentication, and a client can make it crash. `corral rpc-worker` starts it
again.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

from corral.core.errors import CorralError
from corral.llama import library
from corral.llama.device import devices
from corral.llama.library import ggml

_CPU = "CPU"


def serve(endpoint: str, n_threads: int, names: Sequence[str] = ()) -> None:
    """Serve the named devices, or all GPUs, or else the CPU. Returns only by raising CorralError."""
    library.start(verbose=False)
    handles = [_handle(name) for name in names or [one.name for one in devices() if one.is_gpu] or [_CPU]]
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    registry = ggml("ggml_backend_reg_by_name", pointer, b"RPC")
    name = b"ggml_backend_rpc_start_server"
    address = ggml("ggml_backend_reg_get_proc_address", pointer, registry, name) if registry else None
    if not address:
        raise CorralError("this libllama was built without RPC; rebuild it with -DGGML_RPC=on")
    start = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, size, size, pointer)(address)
    start(endpoint.encode(), None, n_threads, len(handles), (pointer * len(handles))(*handles))
    raise CorralError(f"{endpoint} cannot be listened on")


def _handle(name: str) -> int:
    found: int | None = ggml("ggml_backend_dev_by_name", ctypes.c_void_p, name.encode())
    if found is None:
        raise CorralError(
            f"unknown device '{name}'; `corral --list-devices` lists them, {_CPU} is another one"
        )
    return found


def main() -> None:
    endpoint, n_threads, *names = sys.argv[1:]
    try:
        serve(endpoint, int(n_threads), [name for each in names for name in each.split(",")])
    except CorralError as error:
        raise SystemExit(error.message) from None


if __name__ == "__main__":
    main()
