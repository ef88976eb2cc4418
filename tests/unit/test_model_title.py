"""What people call a model."""

from __future__ import annotations

import pytest

from corral.core.model_title import title_of

SMOL = {"name": "Smollm2 135M 8k Lc100K Mix1 Ep2", "basename": "smollm2"}


@pytest.mark.parametrize(
    ("path", "metadata", "title"),
    [
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", SMOL, "SmolLM2 135M Instruct"),
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", {}, "SmolLM2 135M Instruct"),
        ("m.gguf", SMOL, "Smollm2 135M 8k Lc100K Mix1 Ep2"),
        ("m.gguf", {}, "m"),
        ("Qwen3-8B-Q4_K_M.gguf", {"name": "Qwen3 8B Instruct", "basename": "Qwen3"}, "Qwen3 8B"),
        ("gpt-oss-120b-mxfp4-00001-of-00003.gguf", {}, "gpt oss 120b"),
        ("Llama-3.2-1B-IQ3_XXS.gguf", {}, "Llama 3.2 1B"),
        ("C:\\models\\Phi-4-mini-BF16.gguf", {}, "Phi 4 mini"),
        ("", {}, ""),
    ],
)
def test_title(path: str, metadata: dict[str, str], title: str):
    assert title_of(path, **metadata) == title
