"""Options of the context, of metadata and of control vectors on the real command: each does what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.model import decoder_reference as reference
from tests.model.bert_reference import softmax
from tests.model.decoder_reference import Yarn
from tests.system.process import CorralProcess
from tests.system.state import restore_state, save_state
from tests.tools.tiny_vectors import direction, write_vector

TOKENS = np.random.default_rng(0).integers(0, 250, 60).tolist()
EXACT = ("-ctk", "f32", "--cache-type-v", "f32")
CLOSE = 1e-3


def start(path: Path, *options: object) -> CorralProcess:
    return CorralProcess("-m", path, "-c", 512, "-t", 1, "--slots", *options)


def probabilities(server: CorralProcess) -> dict[int, float]:
    """The likeliest next tokens."""
    answer = server.complete(prompt=TOKENS, n_predict=1, n_probs=10, temperature=-1)
    return {
        item["id"]: math.exp(item["logprob"])
        for item in answer["completion_probabilities"][0]["top_logprobs"]
    }


def assert_computes(server: CorralProcess, decoder: reference.Decoder) -> None:
    expected = softmax(reference.logits(decoder, TOKENS))
    found = probabilities(server)
    assert len(found) == 10
    assert all(abs(expected[token] - found[token]) < CLOSE for token in found)


def test_positions_metadata_and_control_vectors(deep, tmp_path):
    one, two = {1: direction(1), 3: direction(2)}, {2: direction(3)}
    paths = [
        write_vector(tmp_path / f"{i}.gguf", {f"direction.{layer}": values for layer, values in each.items()})
        for i, each in enumerate((one, two))
    ]
    options = ["--rope-scaling", "linear", "--rope-scale", 2, "--rope-freq-base", 20000, "-dt", 0.1]
    options += ["--control-vector", paths[0], "--control-vector-scaled", paths[1], 0.5]
    options += ["--control-vector-layer-range", 2, 3, "--check-tensors"]
    options += ["--override-kv", "tokenizer.ggml.add_bos_token=bool:true,tokenizer.ggml.bos_token_id=int:65"]
    decoder = reference.read_decoder(deep)
    steering = {2: 0.5 * two[2], 3: one[3]}
    with start(deep, *EXACT, *options) as server:
        assert_computes(server, replace(decoder, rope_base=20000.0, rope_scale=0.5, steering=steering))
        tokenized = server.post("/tokenize", content="hello", add_special=True).json()["tokens"]
        assert tokenized[0] == 65
        assert server.complete(prompt="hello", n_predict=1)["tokens_evaluated"] == len(tokenized)
        blob = save_state(server, 0)
        assert server.post("/v1/embeddings", input="hello").status_code == 200
    with start(deep, *EXACT) as server:
        refusal = restore_state(server, 0, blob)
        assert refusal.status_code == 400
        assert "model" in refusal.text
        assert_computes(server, decoder)


def test_yarn(deep):
    options = [
        "--rope-scaling",
        "yarn",
        "--rope-freq-scale",
        0.25,
        "--yarn-orig-ctx",
        512,
        "--yarn-ext-factor",
        0.5,
    ]
    options += ["--yarn-attn-factor", 1, "--yarn-beta-slow", 2, "--yarn-beta-fast", 16, "--context-shift"]
    decoder = replace(
        reference.read_decoder(deep),
        rope_scale=0.25,
        rope_size=1 + 0.1 * math.log(4),
        yarn=Yarn(512, 0.5, 16.0, 2.0),
    )
    with start(deep, *EXACT, *options) as server:
        assert_computes(server, decoder)
        full = server.complete(prompt=TOKENS, n_predict=600, temperature=0)
        assert full["stop_type"] == "limit"
        assert full["tokens_predicted"] == 512 - len(TOKENS)
        assert_computes(server, decoder)


def test_a_quantized_cache_turns_flash_attention_on_and_shifts(heads):
    with start(heads / "heads-64.gguf", "-ctk", "q8_0", "-ctv", "q4_0", "--context-shift") as server:
        assert server.complete(prompt=TOKENS, n_predict=600, temperature=0)["tokens_predicted"] == 600
        restored = restore_state(server, 0, save_state(server, 0))
        assert restored.status_code == 200, restored.text


def test_a_mistake_is_told_at_the_start(deep):
    said = last_words("-m", deep, "-c", 512, "-ctk", "q8_0")
    assert "--cache-type-k q8_0 comes in blocks of 32, but the heads of this model have 16 keys" in said


def test_weights_that_are_no_numbers_are_told_at_the_start(deep, tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(deep.read_bytes()[:-256] + b"\xff" * 256)
    assert "has invalid data" in last_words("-m", path, "--check-tensors")
    with start(path) as server:
        assert server.get("/health").status_code == 200


def last_words(*options: object) -> str:
    server = CorralProcess(*options, wait=False)
    assert server.process.wait(300) in (1, 2)
    server.stop()
    return server.lines[-1]
