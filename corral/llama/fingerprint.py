"""What tells one model file from another, without reading all of it."""

from __future__ import annotations

import os

import msgspec
import xxhash

from corral.core.settings import EngineSettings
from corral.llama.context_params import context_params
from corral.llama.library import lib

_HEAD_BYTES = 4 << 20  # the metadata of most files
_N_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10
_POSITIONS = (
    "rope_scaling_type",
    "rope_freq_base",
    "rope_freq_scale",
    "yarn_orig_ctx",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_slow",
    "yarn_beta_fast",
)


def model_fingerprint(settings: EngineSettings) -> bytes:
    """16 bytes that tell a model from others, and from itself where settings make it compute otherwise."""
    file, changes = fingerprint(settings.model), _changes(settings)
    return xxhash.xxh3_128_digest(file + changes) if changes else file


def fingerprint(path: str) -> bytes:
    """16 bytes from a file's size, its beginning, and samples of its weights."""
    with open(path, "rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        digest = xxhash.xxh3_128(n_bytes.to_bytes(8, "little"))
        digest.update(file.read(_HEAD_BYTES))
        for i in range(_N_SAMPLES):
            file.seek(i * max(0, n_bytes - _SAMPLE_BYTES) // _N_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, n_bytes - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def _changes(settings: EngineSettings) -> bytes:
    """What the settings make of a model, if anything."""
    params, default = context_params(settings), lib.llama_context_default_params()
    positions = {n: getattr(params, n) for n in _POSITIONS if getattr(params, n) != getattr(default, n)}
    vectors = [(fingerprint(file.path), file.scale) for file in settings.control_vectors]
    layers = settings.control_vector_layers if vectors else ()
    found = positions, vectors, layers, settings.overrides
    return msgspec.msgpack.encode(found) if any(found) else b""
