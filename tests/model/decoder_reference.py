"""A llama and a qwen3 in plain numpy, computed in double precision: vectors, scores and logits of texts.

No cache and no sampling: every token of the text at once. Weights carry the names that GGUF gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from tests.model.bert_reference import Array, pool_last, read_key, read_weights, softmax


@dataclass(frozen=True, slots=True)
class Yarn:
    """Fast pairs of dimensions keep their speed, slow ones are slowed down, those between are mixed.

    A pair is fast if it turns more than `beta_fast` times within `n_ctx`, and slow if less than `beta_slow`.
    """

    n_ctx: int
    share: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Decoder:
    """`rope_halves`: rope turns dimension i with i + n/2, as qwen3 has it, instead of 2i with 2i + 1.

    `rope_scale`: positions advance so far with each token. `rope_size`: queries and keys grow by it.
    `steering`: is added to what comes out of a layer.
    """

    weights: Mapping[str, Array]
    n_layer: int
    n_head: int
    n_head_kv: int
    norm_eps: float
    rope_base: float
    rope_halves: bool
    rope_scale: float = 1.0
    rope_size: float = 1.0
    yarn: Yarn | None = None
    steering: Mapping[int, Array] = field(default_factory=dict)


def read_decoder(path: Path) -> Decoder:
    reader = GGUFReader(path)
    arch = read_key(reader, "general.architecture")
    return Decoder(
        weights=read_weights(reader),
        n_layer=read_key(reader, f"{arch}.block_count"),
        n_head=read_key(reader, f"{arch}.attention.head_count"),
        n_head_kv=read_key(reader, f"{arch}.attention.head_count_kv"),
        norm_eps=read_key(reader, f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_base=read_key(reader, f"{arch}.rope.freq_base"),
        rope_halves=arch == "qwen3",
    )


def token_rows(decoder: Decoder, tokens: Sequence[int] | npt.NDArray[Any]) -> Array:
    """One row for each token, after the last norm."""
    x = decoder.weights["token_embd.weight"][list(tokens)].astype(np.float64)
    for i in range(decoder.n_layer):
        x = x + _attention(decoder, i, _norm(decoder, f"blk.{i}.attn_norm", x))
        x = x + _feed_forward(decoder, i, _norm(decoder, f"blk.{i}.ffn_norm", x))
        x = x + decoder.steering.get(i, 0.0)
    return _norm(decoder, "output_norm", x)


def logits(decoder: Decoder, tokens: Sequence[int] | npt.NDArray[Any]) -> Array:
    """Behind the last token."""
    return _linear(decoder, "output", pool_last(token_rows(decoder, tokens)))


def class_probabilities(decoder: Decoder, tokens: Sequence[int] | npt.NDArray[Any]) -> Array:
    """The outputs of the head behind the last token, as shares of one."""
    return softmax(_linear(decoder, "cls.output", pool_last(token_rows(decoder, tokens))))


def _attention(decoder: Decoder, i: int, x: Array) -> Array:
    q = _turned(decoder, f"blk.{i}.attn_q", x, decoder.n_head)
    k = _turned(decoder, f"blk.{i}.attn_k", x, decoder.n_head_kv)
    v = _heads(_linear(decoder, f"blk.{i}.attn_v", x), decoder.n_head_kv)
    n_shared = decoder.n_head // decoder.n_head_kv
    k, v = np.repeat(k, n_shared, axis=0), np.repeat(v, n_shared, axis=0)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    later = np.triu(np.ones(scores.shape[1:], dtype=bool), k=1)
    mixed = (softmax(np.where(later, -np.inf, scores)) @ v).swapaxes(0, 1)
    return _linear(decoder, f"blk.{i}.attn_output", mixed.reshape(len(x), -1))


def _turned(decoder: Decoder, name: str, x: Array, n_head: int) -> Array:
    """The queries or keys of all heads, normed where the model does that, and turned by their positions."""
    heads = _heads(_linear(decoder, name, x), n_head)
    if f"{name}_norm.weight" in decoder.weights:
        heads = _norm(decoder, f"{name}_norm", heads)
    return _rope(decoder, heads)


def _heads(x: Array, n_head: int) -> Array:
    return x.reshape(len(x), n_head, -1).swapaxes(0, 1)


def _rope(decoder: Decoder, heads: Array) -> Array:
    """Pairs of dimensions are complex numbers, turned by the position times the speed of the pair."""
    n_head, n_token, n_embd = heads.shape
    turn = decoder.rope_size * np.exp(1j * np.outer(np.arange(n_token), _speeds(decoder, n_embd)))
    shape = (n_head, n_token, 2, -1) if decoder.rope_halves else (n_head, n_token, -1, 2)
    axis = 2 if decoder.rope_halves else 3
    real, imaginary = np.moveaxis(heads.reshape(shape), axis, 0)
    turned = (real + 1j * imaginary) * turn
    return np.stack([turned.real, turned.imag], axis=axis).reshape(heads.shape)


def _speeds(decoder: Decoder, n_embd: int) -> Array:
    pair = np.arange(n_embd // 2)
    speed = decoder.rope_base ** (-2.0 * pair / n_embd)
    slow, yarn = decoder.rope_scale * speed, decoder.yarn
    if yarn is None:
        return slow
    low = max(0.0, np.floor(_pair_that_turns(decoder, yarn, n_embd, yarn.beta_fast)))
    high = min(n_embd - 1.0, np.ceil(_pair_that_turns(decoder, yarn, n_embd, yarn.beta_slow)))
    kept = yarn.share * (1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0))
    return kept * speed + (1.0 - kept) * slow


def _pair_that_turns(decoder: Decoder, yarn: Yarn, n_embd: int, n_times: float) -> float:
    return n_embd * np.log(yarn.n_ctx / (n_times * 2.0 * np.pi)) / (2.0 * np.log(decoder.rope_base))


def _feed_forward(decoder: Decoder, i: int, x: Array) -> Array:
    gate = _linear(decoder, f"blk.{i}.ffn_gate", x)
    gated = gate / (1.0 + np.exp(-gate)) * _linear(decoder, f"blk.{i}.ffn_up", x)
    return _linear(decoder, f"blk.{i}.ffn_down", gated)


def _linear(decoder: Decoder, name: str, x: Array) -> Array:
    return x @ decoder.weights[f"{name}.weight"].T


def _norm(decoder: Decoder, name: str, x: Array) -> Array:
    size = np.sqrt((x**2).mean(axis=-1, keepdims=True) + decoder.norm_eps)
    return x / size * decoder.weights[f"{name}.weight"]
