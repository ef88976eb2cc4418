"""`--list-devices` and other facts about libllama, read in a separate process.

A broken driver or build crashes that process, not the command.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from corral.core.errors import CorralError

_TIMEOUT_S = 300.0  # some drivers are slow to start
_MIB = 1 << 20


class DeviceRow(msgspec.Struct, frozen=True):
    """A device other than the CPU."""

    name: str
    description: str
    n_bytes: int
    n_free_bytes: int
    is_gpu: bool = True


class NativeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Version, path, CPU features and devices of libllama."""

    version: str
    path: str
    features: str  # "NEON = 1 | ..."
    devices: list[DeviceRow]


def print_devices(rpc: Sequence[str] = ()) -> int:
    rows = list_devices(rpc)
    lines = [
        f"{row.name}: {row.description} ({row.n_bytes // _MIB} MiB, {row.n_free_bytes // _MIB} MiB free)"
        for row in rows
    ]
    sys.stdout.write("\n  ".join(["Available devices:", *(lines or ["(none)"])]) + "\n")
    return 0


def list_devices(rpc: Sequence[str] = ()) -> list[DeviceRow]:
    """List the devices other than the CPU, including those of RPC servers at HOST:PORT."""
    return native_facts(rpc).devices


def native_facts(rpc: Sequence[str] = ()) -> NativeFacts:
    """Read the facts in another process. Raises CorralError if libllama cannot be loaded or crashes."""
    command = [sys.executable, "-m", "corral.cli.devices", *rpc]
    try:
        result = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CorralError(f"libllama did not start within {_TIMEOUT_S:g} s") from None
    if result.returncode < 0:
        raise CorralError(
            f"libllama crashed at startup: {_signal_name(-result.returncode)}{_last(result.stderr)}"
        )
    try:
        return msgspec.json.decode(result.stdout.rpartition(b"\n")[2], type=NativeFacts)
    except msgspec.DecodeError:
        raise CorralError(_last(result.stderr).removeprefix(": ") or "libllama printed nothing") from None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last(output: bytes) -> str:
    """Return the last line of an output, after a colon."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def _tell(rpc: Sequence[str]) -> None:
    """Print the facts as JSON; runs in the other process."""
    from corral.llama.device import add_servers, devices
    from corral.llama.library import lib, start

    start(verbose=False)
    add_servers(rpc)
    found = [(device, device.memory()) for device in devices()]
    facts = NativeFacts(
        version=lib.llama_version().decode(),
        path=str(lib._lib._name),
        features=lib.llama_print_system_info().decode("utf-8", "replace"),
        devices=[
            DeviceRow(device.name, device.description, total, free, device.is_gpu)
            for device, (free, total) in found
        ],
    )
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(facts))


if __name__ == "__main__":
    try:
        _tell(sys.argv[1:])
    except CorralError as error:
        raise SystemExit(error.message) from None
