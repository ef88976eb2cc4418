"""Devices that libllama can compute on besides the CPU, and which of them a model uses.

Devices of RPC servers are listed once the servers were added. For the engine process only: listing GPUs
starts their drivers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.library import ggml, lib
from corral.llama.rpc import check_server
from corral.llama.tensor_place import native_places, tensor_places

_CPU, _GPU, _INTEGRATED = 0, 1, 2  # GGML_BACKEND_DEVICE_TYPE_*
_NONE = ("none",)
_REMOTE = b"RPC"
_SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
    "tensor": lib.LLAMA_SPLIT_MODE_TENSOR,
}
_servers: set[str] = set()


@dataclass(frozen=True, slots=True)
class Device:
    """`handle` is a `ggml_backend_dev_t`, valid as long as the process."""

    name: str
    description: str
    kind: int
    is_remote: bool
    handle: int

    @property
    def is_gpu(self) -> bool:
        """Whether layers can be placed on it, including RPC devices."""
        return self.kind in (_GPU, _INTEGRATED)

    def memory(self) -> tuple[int, int]:
        """Return (free, total) bytes; may query an RPC server."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ggml("ggml_backend_dev_memory", None, self.handle, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


@dataclass(frozen=True, slots=True)
class Placement:
    """Where libllama places a model; owns the arrays it points into."""

    devices: Any = None  # None: all of them
    tensor_split: Any = None
    split_mode: int = lib.LLAMA_SPLIT_MODE_LAYER
    main_gpu: int = 0
    tensors: Any = None  # None: where their layers are
    no_host: bool = False

    def for_draft(self) -> Placement:
        """Return the same for another model, whose tensors have other names."""
        return replace(self, tensors=None)

    def apply(self, params: Any) -> None:
        if self.tensors is not None:
            params.tensor_buft_overrides = ctypes.cast(self.tensors, ctypes.c_void_p)
        params.no_host = self.no_host
        if self.devices is not None:
            params.devices = ctypes.cast(self.devices, ctypes.c_void_p)
        if self.tensor_split is not None:
            params.tensor_split = self.tensor_split
        params.split_mode = self.split_mode
        params.main_gpu = self.main_gpu


NOWHERE = Placement(devices=(ctypes.c_void_p * 1)())  # host memory only


def start(settings: EngineSettings) -> None:
    """Initialize libllama and its RPC devices; repeated calls are harmless."""
    library.start(settings.verbose, settings.numa)
    add_servers(settings.rpc)


def devices() -> list[Device]:
    """List all devices except CPUs, in libllama's order."""
    n = ggml("ggml_backend_dev_count", ctypes.c_size_t)
    found = [_device(ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(i))) for i in range(n)]
    return [device for device in found if device.kind != _CPU]


def place(settings: EngineSettings) -> Placement:
    """Place an engine's models; raises CorralError if the settings name a missing device."""
    chosen = used_devices(settings)
    if settings.devices != _NONE:
        _check_main(settings.main_gpu, chosen)
        _check_split(settings, chosen)
    named = None
    if settings.devices:
        named = (ctypes.c_void_p * (len(chosen) + 1))(*(device.handle for device in chosen))
    shares = None
    if settings.tensor_split and chosen:
        shares = (ctypes.c_float * lib.llama_max_devices())(*settings.tensor_split[: len(chosen)])
    mode = _SPLIT_MODES[settings.split_mode if chosen else "layer"]
    main, tensors = settings.main_gpu if chosen else 0, native_places(tensor_places(settings))
    return Placement(named, shares, mode, main, tensors, settings.no_host)


def used_devices(settings: EngineSettings) -> list[Device]:
    """Return the devices that layers may be placed on, in libllama's order."""
    if settings.devices == _NONE:
        return []
    found = [device for device in devices() if device.is_gpu]
    if settings.devices:
        by_name = {device.name: device for device in found}
        return [_named(name, by_name) for name in dict.fromkeys(settings.devices)]
    remote = [device for device in found if device.is_remote]
    local = [device for device in found if device.kind == _GPU and not device.is_remote]
    return remote + (local or [device for device in found if device.kind == _INTEGRATED])


def projector_device(settings: EngineSettings) -> Device | None:
    """Return the device that encodes media, if not the CPU; preferably a local one."""
    chosen = used_devices(settings)
    return next((device for device in chosen if not device.is_remote), chosen[0] if chosen else None)


def add_servers(endpoints: Sequence[str]) -> None:
    """Add the devices of RPC servers, each HOST:PORT. Raises CorralError if one does not respond."""
    for endpoint in endpoints:
        if endpoint not in _servers:
            check_server(endpoint)
            _add_server(endpoint)
            _servers.add(endpoint)


def _add_server(endpoint: str) -> None:
    registry = ggml("ggml_backend_reg_by_name", ctypes.c_void_p, _REMOTE)
    name = b"ggml_backend_rpc_add_server"
    address = ggml("ggml_backend_reg_get_proc_address", ctypes.c_void_p, registry, name) if registry else None
    if not address:
        raise CorralError("--rpc: this libllama was built without RPC; rebuild it with -DGGML_RPC=on")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    added = add(endpoint.encode())
    if not added:
        raise CorralError(f"--rpc {endpoint}: the server has no devices")
    ggml("ggml_backend_register", None, added)


def _named(name: str, by_name: dict[str, Device]) -> Device:
    if name not in by_name:
        raise CorralError(f"--device: unknown device '{name}'; {_there_are(list(by_name.values()))}")
    return by_name[name]


def _check_main(main_gpu: int, chosen: Sequence[Device]) -> None:
    if not 0 <= main_gpu < max(1, len(chosen)):
        raise CorralError(f"--main-gpu {main_gpu}: devices are counted from 0; {_there_are(chosen)}")


def _check_split(settings: EngineSettings, chosen: Sequence[Device]) -> None:
    shares = settings.tensor_split
    n = max((i for i, share in enumerate(shares, 1) if share), default=0)
    if any(share < 0 or not math.isfinite(share) for share in shares) or (shares and not n):
        raise CorralError("--tensor-split: the shares must not be negative, and not all 0")
    if n > max(1, len(chosen)):
        raise CorralError(f"--tensor-split has {n} shares; {_there_are(chosen)}")
    if settings.split_mode == "tensor" and not chosen:
        raise CorralError(f"--split-mode tensor needs a GPU; {_there_are(chosen)}")


def _there_are(found: Sequence[Device]) -> str:
    if not found:
        return "libllama sees no GPU here (`corral doctor` may know why)"
    names = ", ".join(device.name for device in found)
    return f"there {'is only' if len(found) == 1 else 'are'} {names}"


def _device(handle: int) -> Device:
    registry = ggml("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle)
    return Device(
        name=ggml("ggml_backend_dev_name", ctypes.c_char_p, handle).decode("utf-8", "replace"),
        description=ggml("ggml_backend_dev_description", ctypes.c_char_p, handle).decode("utf-8", "replace"),
        kind=ggml("ggml_backend_dev_type", ctypes.c_int, handle),
        is_remote=ggml("ggml_backend_reg_name", ctypes.c_char_p, registry) == _REMOTE,
        handle=handle,
    )
