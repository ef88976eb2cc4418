"""GGUF files: models, parts of split models and adapters, as the check before native code reads them."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from corral.core.errors import CorralError
from corral.gguf.model_file import check_model_file
from corral.gguf.preflight import check_adapter, read_header
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target
from tests.tools.small_gguf import small_gguf, split_gguf

_DIRECTORY = tempfile.TemporaryDirectory(prefix="fuzz-gguf-")
_PATH = Path(_DIRECTORY.name) / "model.gguf"


def parse(data: bytes) -> None:
    _PATH.unlink(missing_ok=True)  # an earlier one may still be mapped
    _PATH.write_bytes(data)
    with contextlib.suppress(CorralError):
        check_adapter(read_header(_PATH), "llama")
    check_model_file(_PATH)


SEEDS = [
    small_gguf(16),
    small_gguf(16, tensors=["a", "b", "token_embd.weight"]),
    small_gguf(8, general__name="x", tokenizer__ggml__model="gpt2", numbers={"llama.block_count": 1}),
]
OTHERS = [*SEEDS, *split_gguf(2, n_values=8)]
WORDS = [b"GGUF", b"general.alignment", b"split.count", b"general.type", b"adapter", bytes(8), b"\xff" * 8]
TARGET = Target("gguf", parse, SEEDS, mutated(OTHERS, WORDS), (CorralError,))
