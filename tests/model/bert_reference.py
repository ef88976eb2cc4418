"""BERT in plain numpy, computed in double precision: what libllama's vectors and scores must agree with.

Takes tokens, knows no tokenizer. Weights carry the names that GGUF gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from tests.tools import minilm

Array = npt.NDArray[np.floating]

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class Bert:
    weights: Mapping[str, Array]
    n_layer: int
    n_head: int
    norm_eps: float
    gelu: Callable[[Array], Array]


def read_bert(path: Path) -> Bert:
    """A BERT with the weights of a GGUF and libllama's activation: they differ by rounding alone."""
    reader = GGUFReader(path)
    return Bert(
        read_weights(reader),
        read_key(reader, "bert.block_count"),
        read_key(reader, "bert.attention.head_count"),
        read_key(reader, "bert.attention.layer_norm_epsilon"),
        table_gelu,
    )


def read_original_minilm() -> Bert:
    """all-MiniLM-L6-v2 as it was published: neither the weights nor the activation of the converted file."""
    config = minilm.read_config()
    n_layer, n_head = config["num_hidden_layers"], config["num_attention_heads"]
    return Bert(minilm.read_weights(), n_layer, n_head, config["layer_norm_eps"], exact_gelu)


def token_rows(bert: Bert, tokens: Sequence[int] | npt.NDArray[Any]) -> Array:
    """One row for each token: what libllama gives with pooling "none"."""
    weights = bert.weights
    x: Array = weights["token_embd.weight"][list(tokens)].astype(np.float64)
    x = x + weights["token_types.weight"][0] + weights["position_embd.weight"][: len(tokens)]
    x = _layer_norm(bert, "token_embd_norm", x)
    for i in range(bert.n_layer):
        x = _layer_norm(bert, f"blk.{i}.attn_output_norm", x + _attention(bert, i, x))
        x = _layer_norm(bert, f"blk.{i}.layer_output_norm", x + _feed_forward(bert, i, x))
    return x


def pool_mean(rows: Array) -> Array:
    return rows.mean(axis=0)


def pool_cls(rows: Array) -> Array:
    return rows[0]


def pool_last(rows: Array) -> Array:
    return rows[-1]


def class_logits(bert: Bert, tokens: Sequence[int] | npt.NDArray[Any]) -> Array:
    """The outputs of the classification head, before any softmax or sigmoid."""
    first = pool_cls(token_rows(bert, tokens))
    return _linear(bert, "cls.output", np.tanh(_linear(bert, "cls", first)))


def exact_gelu(x: Array) -> Array:
    """As BERT was trained."""
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def table_gelu(x: Array) -> Array:
    """As libllama has it on CPUs: an approximation with tanh, looked up in half precision."""
    half = x.astype(np.float16).astype(np.float64)
    value = 0.5 * half * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (half + 0.044715 * half**3)))
    return np.where(np.abs(x) < 10.0, value.astype(np.float16), np.maximum(x, 0.0))


def unit(vector: Array) -> Array:
    return vector / np.linalg.norm(vector)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def read_weights(reader: GGUFReader) -> dict[str, Array]:
    """The tensors of a file without quantized ones, as they are stored: rows are outputs."""
    return {tensor.name: tensor.data for tensor in reader.tensors}


def read_key(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    assert field is not None, name
    return field.contents()


def _attention(bert: Bert, i: int, x: Array) -> Array:
    q, k, v = (_heads(bert, _linear(bert, f"blk.{i}.attn_{name}", x)) for name in "qkv")
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    mixed = (softmax(scores) @ v).swapaxes(0, 1)
    return _linear(bert, f"blk.{i}.attn_output", mixed.reshape(x.shape))


def _heads(bert: Bert, x: Array) -> Array:
    return x.reshape(len(x), bert.n_head, -1).swapaxes(0, 1)


def _feed_forward(bert: Bert, i: int, x: Array) -> Array:
    return _linear(bert, f"blk.{i}.ffn_down", bert.gelu(_linear(bert, f"blk.{i}.ffn_up", x)))


def _linear(bert: Bert, name: str, x: Array) -> Array:
    return x @ bert.weights[f"{name}.weight"].T + bert.weights[f"{name}.bias"]


def _layer_norm(bert: Bert, name: str, x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    normal = centred / np.sqrt(variance + bert.norm_eps)
    return normal * bert.weights[f"{name}.weight"] + bert.weights[f"{name}.bias"]
