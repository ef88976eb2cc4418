"""Fingerprints of models, including the settings that change what they compute."""

from __future__ import annotations

import msgspec
import xxhash

from corral.core.settings import EngineSettings
from corral.gguf.fingerprint import fingerprint
from corral.llama.context_params import context_params
from corral.llama.library import lib

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
    """Return 16 bytes that identify a model together with the settings that change its results."""
    file, changes = fingerprint(settings.model), _changes(settings)
    return xxhash.xxh3_128_digest(file + changes) if changes else file


def _changes(settings: EngineSettings) -> bytes:
    """Encode the settings that change a model's results."""
    params, default = context_params(settings), lib.llama_context_default_params()
    positions = {n: getattr(params, n) for n in _POSITIONS if getattr(params, n) != getattr(default, n)}
    vectors = [(fingerprint(file.path), file.scale) for file in settings.control_vectors]
    layers = settings.control_vector_layers if vectors else ()
    found = positions, vectors, layers, settings.overrides
    return msgspec.msgpack.encode(found) if any(found) else b""
