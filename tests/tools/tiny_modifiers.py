"""Writes what changes `tiny_models.llama_bpe`, or helps it: `python -m tests.tools.tiny_modifiers DIR`.

LoRA adapters, the model with their weights merged into its own, files that are no adapter for it, and draft
models. A file that is there already is left as it is. Knows gguf and numpy, nothing of corral.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFType, GGUFWriter, TokenType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD_KV, N_LAYER

Array = npt.NDArray[np.floating]

RANK = 4
EMBEDDING = "token_embd.weight"
DRAFT_NOISE = 0.025


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter by what it is made of; what it adds to weights is drawn from its seed."""

    seed: int
    alpha: float
    changes_embedding: bool = False
    arch: str = "llama"
    type: str = GGUFType.ADAPTER
    n_embd: int = N_EMBD

    def pairs(self) -> Iterator[tuple[str, Array, Array]]:
        """The name of each weight it changes, with the two matrices as they are in the file."""
        random = np.random.RandomState(self.seed)
        for name, n_out, n_in in self._shapes():
            a = random.standard_normal((RANK, n_in)) / np.sqrt(n_in)
            b = random.standard_normal((n_out, RANK)) / np.sqrt(RANK)
            # That of the embedding is not transposed, since rows are looked up in it.
            yield name, *((b, a.T) if name == EMBEDDING else (a, b))

    def deltas(self) -> dict[str, Array]:
        """What is added to weights at a scale of 1."""
        return {
            name: self.alpha / RANK * (a @ b.T if name == EMBEDDING else b @ a) for name, a, b in self.pairs()
        }

    def _shapes(self) -> Iterator[tuple[str, int, int]]:
        n_embd_kv = N_HEAD_KV * N_EMBD_HEAD
        for i in range(N_LAYER):
            yield f"blk.{i}.attn_q.weight", self.n_embd, self.n_embd
            yield f"blk.{i}.attn_k.weight", n_embd_kv, self.n_embd
            yield f"blk.{i}.attn_v.weight", n_embd_kv, self.n_embd
            yield f"blk.{i}.attn_output.weight", self.n_embd, self.n_embd
            yield f"blk.{i}.ffn_gate.weight", N_FF, self.n_embd
            yield f"blk.{i}.ffn_up.weight", N_FF, self.n_embd
            yield f"blk.{i}.ffn_down.weight", self.n_embd, N_FF
        if self.changes_embedding:
            yield EMBEDDING, len(tiny._bpe_vocabulary().tokens), self.n_embd


A = Lora(seed=71, alpha=8.0)
B = Lora(seed=72, alpha=4.0)
EMBD = Lora(seed=73, alpha=4.0, changes_embedding=True)


def lora_a(directory: Path) -> Path:
    """An adapter for attention and feed-forward weights of all layers."""
    return _write_lora(directory / "lora-a.gguf", A)


def lora_b(directory: Path) -> Path:
    """Another one for the same weights."""
    return _write_lora(directory / "lora-b.gguf", B)


def lora_embd(directory: Path) -> Path:
    """One that changes the embedding of tokens too."""
    return _write_lora(directory / "lora-embd.gguf", EMBD)


def lora_other(directory: Path) -> Path:
    """One for another architecture, and well-formed."""
    return _write_lora(directory / "lora-other.gguf", replace(A, arch="gemma3"))


def lora_shape(directory: Path) -> Path:
    """One for a llama whose rows are shorter, and well-formed."""
    return _write_lora(directory / "lora-shape.gguf", replace(A, n_embd=N_EMBD // 2))


def not_lora(directory: Path) -> Path:
    """The tensors of an adapter in a file that says it is a model."""
    return _write_lora(directory / "not-lora.gguf", replace(A, type=GGUFType.MODEL))


def lora_broken(directory: Path) -> Path:
    """An adapter that ends in the middle of its data."""
    source = lora_a(directory)

    def cut(path: Path) -> None:
        os.truncate(path, source.stat().st_size * 3 // 4)

    return _write_changed(directory / "lora-broken.gguf", source, cut)


def merged_a(directory: Path) -> Path:
    """The model with `lora_a` in its weights."""
    return _write_merged(directory / "merged-a.gguf", (A, 1.0))


def merged_a_half(directory: Path) -> Path:
    """The same at a scale of 0.5."""
    return _write_merged(directory / "merged-a-half.gguf", (A, 0.5))


def merged_b(directory: Path) -> Path:
    """The model with `lora_b` in its weights."""
    return _write_merged(directory / "merged-b.gguf", (B, 1.0))


def merged_ab(directory: Path) -> Path:
    """The model with `lora_a`, and `lora_b` at a scale of 0.5."""
    return _write_merged(directory / "merged-ab.gguf", (A, 1.0), (B, 0.5))


def merged_embd(directory: Path) -> Path:
    """The model with `lora_embd` in its weights."""
    return _write_merged(directory / "merged-embd.gguf", (EMBD, 1.0))


def draft(directory: Path) -> Path:
    """The model with noise on its matrices: it mostly agrees on the next token."""
    random = np.random.RandomState(74)

    def add_noise(name: str, values: Array) -> Array:
        return DRAFT_NOISE * values.std() * random.standard_normal(values.shape)

    path = directory / "draft.gguf"
    return _write_changed(path, tiny.llama_bpe(directory), lambda beside: _add_to_weights(beside, add_noise))


def draft_other_vocab(directory: Path) -> Path:
    """A model with as many tokens as the first one, the words among them in another order."""
    recipe = tiny._Recipe("llama", 75, _reordered_vocabulary, tiny._add_llama)
    return tiny._write(directory / "draft-other-vocab.gguf", recipe)


ALL = (
    tiny.llama_bpe,
    lora_a,
    lora_b,
    lora_embd,
    lora_other,
    lora_shape,
    not_lora,
    lora_broken,
    merged_a,
    merged_a_half,
    merged_b,
    merged_ab,
    merged_embd,
    draft,
    draft_other_vocab,
)


def _write_lora(path: Path, lora: Lora) -> Path:
    def fill(writer: GGUFWriter) -> None:
        writer.add_type(lora.type)
        writer.add_name(f"tiny {path.stem}")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", lora.alpha)
        for name, a, b in lora.pairs():
            writer.add_tensor(f"{name}.lora_a", np.ascontiguousarray(a, np.float32))
            writer.add_tensor(f"{name}.lora_b", np.ascontiguousarray(b, np.float32))

    return tiny.write_file(path, lora.arch, fill)


def _write_merged(path: Path, *loras: tuple[Lora, float]) -> Path:
    added = [(lora.deltas(), scale) for lora, scale in loras]

    def delta(name: str, _values: Array) -> Array | float:
        return sum(scale * deltas.get(name, 0.0) for deltas, scale in added)

    source = tiny.llama_bpe(path.parent)
    return _write_changed(path, source, lambda beside: _add_to_weights(beside, delta))


def _add_to_weights(path: Path, delta: Callable[[str, Array], Array | float]) -> None:
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.data.ndim > 1:
            tensor.data[:] = tensor.data.astype(np.float64) + delta(tensor.name, tensor.data)


def _write_changed(path: Path, source: Path, change: Callable[[Path], None]) -> Path:
    """Writes what `change` makes of a copy, all or nothing, unless the file is there already."""
    if not path.exists():
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        shutil.copyfile(source, beside)
        change(beside)
        beside.replace(path)
    return path


def _reordered_vocabulary() -> tiny._Vocabulary:
    vocabulary = tiny._bpe_vocabulary()
    n_bytes, n_text = 256, vocabulary.types.count(TokenType.NORMAL)
    tokens = vocabulary.tokens
    words = tokens[n_bytes:n_text]
    return replace(vocabulary, tokens=[*tokens[:n_bytes], *reversed(words), *tokens[n_text:]])


if __name__ == "__main__":
    tiny.main(ALL)


MERGED = {
    "merged-a": [("lora-a", 1.0)],
    "merged-a-half": [("lora-a", 0.5)],
    "merged-b": [("lora-b", 1.0)],
    "merged-ab": [("lora-a", 1.0), ("lora-b", 0.5)],
    "merged-embd": [("lora-embd", 1.0)],
}
