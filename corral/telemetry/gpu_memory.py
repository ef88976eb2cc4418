"""Memory of the machine's GPUs, from the driver of NVIDIA or the files of amdgpu. No native inference code.

`GpuMemory.read` may take some milliseconds, and longer when it is first called: not on the event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DRIVER = "libnvidia-ml.so.1"
_CARDS = Path("/sys/class/drm")
_NAME_BYTES = 96


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    used: int  # bytes
    total: int


class _NvidiaMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class GpuMemory:
    """Not for several threads at once."""

    def __init__(self, driver: str = _DRIVER, cards: Path = _CARDS) -> None:
        self._driver_name = driver
        self._cards = cards
        self._driver: ctypes.CDLL | None = None
        self._is_open = False

    def read(self) -> list[Gpu]:
        if not self._is_open:
            self._is_open, self._driver = True, _open_driver(self._driver_name)
        nvidia = list(_read_nvidia(self._driver)) if self._driver is not None else []
        return [*nvidia, *_read_amd(self._cards)]


def _open_driver(name: str) -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL(name)
        return driver if driver.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _read_nvidia(driver: ctypes.CDLL) -> Iterator[Gpu]:
    n = ctypes.c_uint()
    if driver.nvmlDeviceGetCount_v2(ctypes.byref(n)) != 0:
        return
    for i in range(n.value):
        handle, memory = ctypes.c_void_p(), _NvidiaMemory()
        name = ctypes.create_string_buffer(_NAME_BYTES)
        if (
            driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(i), ctypes.byref(handle)) == 0
            and driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
            and driver.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES)) == 0
        ):
            yield Gpu(name.value.decode(errors="replace"), memory.used, memory.total)


def _read_amd(cards: Path) -> Iterator[Gpu]:
    for device in sorted(cards.glob("card[0-9]*/device")):
        with contextlib.suppress(OSError, ValueError):  # of another vendor
            total, used = (int((device / f"mem_info_vram_{what}").read_text()) for what in ("total", "used"))
            yield Gpu(f"AMD {device.parent.name}", used, total)
