"""What a model is for, by the header of its file."""

from __future__ import annotations

import os

import pytest
from gguf import GGUFWriter

from corral.models.header import _look_into

MEAN, RANK = 1, 4


@pytest.mark.parametrize(
    ("architecture", "pooling", "is_causal", "kind"),
    [
        ("llama", None, True, "chat"),
        ("qwen3", 3, True, "embedding"),
        ("bert", MEAN, False, "embedding"),
        ("bert", RANK, False, "reranker"),
        ("bert", None, False, "encoder"),
        ("t5encoder", None, True, "encoder"),
        ("gemma-embedding", None, True, "embedding"),
    ],
)
def test_the_kind_of_a_model_is_in_its_file(tmp_path, architecture, pooling, is_causal, kind):
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, architecture)
    if pooling is not None:
        writer.add_uint32(f"{architecture}.pooling_type", pooling)
    writer.add_bool(f"{architecture}.attention.causal", is_causal)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert _look_into(str(path), os.stat(path).st_mtime_ns).kind.value == kind
