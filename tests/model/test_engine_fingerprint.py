"""Engines that compute the same bits have the same fingerprint, others have another one."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.engine_fingerprint import engine_fingerprint


@pytest.fixture(scope="module")
def settings(models):
    library.start(False)
    return EngineSettings(model=str(models / "llama-bpe.gguf"), n_ctx=512, n_parallel=2)


@pytest.mark.parametrize(
    "change", [{"cache_type_k": "q8_0"}, {"n_ubatch": 64}, {"flash_attn": "on"}, {"kv_unified": True}]
)
def test_what_changes_bits_changes_it(settings, change):
    assert engine_fingerprint(settings) != engine_fingerprint(msgspec.structs.replace(settings, **change))


@pytest.mark.parametrize("change", [{"cpus": (1,)}, {"cache_ram_mib": 5}, {"cache_disk": "/d"}])
def test_what_an_engine_has_to_itself_does_not(settings, change):
    assert engine_fingerprint(settings) == engine_fingerprint(msgspec.structs.replace(settings, **change))


def test_another_model_has_another_one(settings, models):
    other = msgspec.structs.replace(settings, model=str(models / "llama-spm.gguf"))
    assert engine_fingerprint(settings) != engine_fingerprint(other)
