"""Writes the tiny models that `tests/model` runs real libllama on: `python -m tests.tools.tiny_models DIR`.

Random weights from fixed seeds; a file that is there already is left as it is. Gains and seeds are chosen
so that greedy text wanders instead of repeating one token, and that small rounding differences rarely
change it. Knows gguf and numpy, nothing of corral.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, LlamaFileType, TokenType

N_LAYER = 2
N_EMBD = 64
N_HEAD = 4
N_HEAD_KV = 2
N_EMBD_HEAD = N_EMBD // N_HEAD
N_FF = 128
N_CTX = 1024
N_SWA = 64
D_INNER = 2 * N_EMBD
D_STATE = 16
D_CONV = 4
DT_RANK = 4

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOOL_USE = "{% for tool in tools %}{{ '<tool_call>' + tool.function.name }}{% endfor %}" + CHATML

FIM = {
    "pre": "<|fim_prefix|>",
    "suf": "<|fim_suffix|>",
    "mid": "<|fim_middle|>",
    "rep": "<|repo_name|>",
    "sep": "<|file_sep|>",
    "pad": "<|fim_pad|>",
}

_INITIAL_WORDS = "the and of to in is that it you was for are with not have be hello world Hello"
_INNER_WORDS = "the er in ing on an re at en ed or es ll ou ly st"


def llama_bpe(directory: Path) -> Path:
    """A llama with a byte-level BPE vocabulary and a ChatML template."""
    return _write(directory / "llama-bpe.gguf", _Recipe("llama", 46, _bpe_vocabulary, _add_llama))


def llama_fim(directory: Path) -> Path:
    """A llama with the tokens of a model for code, which libllama knows by their names."""
    return _write(directory / "llama-fim.gguf", _Recipe("llama", 46, _fim_vocabulary, _add_llama))


def llama_spm(directory: Path) -> Path:
    """A llama with a SentencePiece vocabulary: BOS and a space before the text; no chat template."""
    return _write(directory / "llama-spm.gguf", _Recipe("llama", 10, _spm_vocabulary, _add_llama))


def mamba(directory: Path) -> Path:
    """A recurrent model: its memory of a sequence can be dropped, but not cut in the middle."""
    return _write(directory / "mamba.gguf", _Recipe("mamba", 26, _bpe_vocabulary, _add_mamba))


def gemma_swa(directory: Path) -> Path:
    """A gemma3 whose first layer sees `N_SWA` tokens back and whose second sees everything."""
    return _write(directory / "gemma-swa.gguf", _Recipe("gemma3", 28, _bpe_vocabulary, _add_gemma))


ALL = (llama_bpe, llama_fim, llama_spm, mamba, gemma_swa)


def main(writers: Sequence[Callable[[Path], Path]] = ALL) -> None:
    parser = argparse.ArgumentParser(description="Write the tiny test models that are missing in DIR.")
    parser.add_argument("directory", metavar="DIR", type=Path)
    directory = parser.parse_args().directory
    for write in writers:
        path = write(directory)
        sys.stdout.write(f"{path} {path.stat().st_size} bytes\n")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokens by id and what else the tokenizer needs; `loudness` is the relative deviation of a logit.

    Control tokens have loudness 0, a logit of exactly 0: greedy text never ends by itself.
    """

    tokens: list[str]
    types: list[TokenType]
    loudness: npt.NDArray[np.floating]
    add_keys: Callable[[GGUFWriter], None]


@dataclass(frozen=True, slots=True)
class _Recipe:
    arch: str
    seed: int
    make_vocabulary: Callable[[], _Vocabulary]
    add_model: Callable[[GGUFWriter, Weights], None]


class Weights:
    """Draws tensors one after the other and adds them to a file as F32."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        # The legacy generator: the only one whose stream numpy promises never to change.
        self._random = np.random.RandomState(seed)

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        """A linear map that turns unit-variance input into output with deviation `gain`."""
        self.rows(name, n_in, np.full(n_out, gain))

    def rows(self, name: str, n_in: int, gains: npt.NDArray[np.floating]) -> None:
        """A linear map with a gain of its own for every output."""
        values = self._random.standard_normal((len(gains), n_in)) / np.sqrt(n_in)
        self.exact(name, gains[:, None] * values)

    def vector(self, name: str, n: int, value: float = 1.0) -> None:
        self.exact(name, np.full(n, value))

    def noise(self, name: str, n: int, mean: float, deviation: float) -> None:
        """A vector of normal values around `mean`."""
        self.exact(name, mean + deviation * self._random.standard_normal(n))

    def exact(self, name: str, values: npt.NDArray[np.floating]) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))


def _write(path: Path, recipe: _Recipe) -> Path:
    return write_file(path, recipe.arch, lambda writer: _fill(writer, path.stem, recipe))


def write_file(path: Path, arch: str, fill: Callable[[GGUFWriter], None]) -> Path:
    """Writes what `fill` adds, all or nothing, unless the file is there already."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    writer = GGUFWriter(beside, arch)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)
    return path


def _fill(writer: GGUFWriter, name: str, recipe: _Recipe) -> None:
    vocabulary = recipe.make_vocabulary()
    weights = Weights(writer, recipe.seed)
    writer.add_name(f"tiny {name}")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    weights.matrix("token_embd.weight", len(vocabulary.tokens), N_EMBD, gain=np.sqrt(N_EMBD))
    recipe.add_model(writer, weights)
    weights.vector("output_norm.weight", N_EMBD)
    weights.rows("output.weight", N_EMBD, 4.0 * vocabulary.loudness)


def _add_llama(writer: GGUFWriter, weights: Weights) -> None:
    _add_attention_keys(writer)
    for i in range(N_LAYER):
        _add_attention_layer(weights, i)


def _add_gemma(writer: GGUFWriter, weights: Weights) -> None:
    _add_attention_keys(writer)
    writer.add_sliding_window(N_SWA)
    writer.add_sliding_window_pattern(2)
    for i in range(N_LAYER):
        _add_attention_layer(weights, i)
        weights.vector(f"blk.{i}.attn_q_norm.weight", N_EMBD_HEAD, 1.5)
        weights.vector(f"blk.{i}.attn_k_norm.weight", N_EMBD_HEAD, 1.5)
        # The graph scales embeddings by sqrt(n_embd); what the layers add has to keep up with them.
        weights.vector(f"blk.{i}.post_attention_norm.weight", N_EMBD, np.sqrt(N_EMBD))
        weights.vector(f"blk.{i}.post_ffw_norm.weight", N_EMBD, np.sqrt(N_EMBD))


def _add_attention_keys(writer: GGUFWriter) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(N_EMBD_HEAD)
    writer.add_value_length(N_EMBD_HEAD)
    writer.add_rope_dimension_count(N_EMBD_HEAD)
    writer.add_rope_freq_base(10000.0)


def _add_attention_layer(weights: Weights, i: int) -> None:
    _add_attention(weights, i)
    weights.vector(f"blk.{i}.ffn_norm.weight", N_EMBD)
    weights.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
    weights.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
    weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF, gain=2.0)


def _add_attention(weights: Weights, i: int) -> None:
    n_embd_kv = N_HEAD_KV * N_EMBD_HEAD
    weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
    weights.matrix(f"blk.{i}.attn_q.weight", N_EMBD, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_k.weight", n_embd_kv, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_v.weight", n_embd_kv, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.attn_output.weight", N_EMBD, N_EMBD)


def _add_mamba(writer: GGUFWriter, weights: Weights) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(D_CONV)
    writer.add_ssm_inner_size(D_INNER)
    writer.add_ssm_state_size(D_STATE)
    writer.add_ssm_time_step_rank(DT_RANK)
    for i in range(N_LAYER):
        _add_mamba_layer(weights, i)


def _add_mamba_layer(weights: Weights, i: int) -> None:
    decay = np.tile(np.arange(1.0, D_STATE + 1), (D_INNER, 1))
    weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
    weights.matrix(f"blk.{i}.ssm_in.weight", 2 * D_INNER, N_EMBD, gain=2.0)
    weights.matrix(f"blk.{i}.ssm_conv1d.weight", D_INNER, D_CONV)
    weights.vector(f"blk.{i}.ssm_conv1d.bias", D_INNER, 0.0)
    weights.matrix(f"blk.{i}.ssm_x.weight", DT_RANK + 2 * D_STATE, D_INNER)
    weights.matrix(f"blk.{i}.ssm_dt.weight", D_INNER, DT_RANK)
    # softplus(-3) is a time step of about 0.05: the slowest states remember some twenty tokens.
    weights.vector(f"blk.{i}.ssm_dt.bias", D_INNER, -3.0)
    weights.exact(f"blk.{i}.ssm_a", -decay)
    weights.vector(f"blk.{i}.ssm_d", D_INNER)
    weights.matrix(f"blk.{i}.ssm_out.weight", N_EMBD, D_INNER)


def _fim_vocabulary() -> _Vocabulary:
    return _bpe_vocabulary(more_controls=FIM.values())


def _bpe_vocabulary(
    named: tuple[str, str] = ("tool_use", TOOL_USE), more_controls: Iterable[str] = ()
) -> _Vocabulary:
    """Byte-level BPE with two chat templates: ChatML and the `named` one."""
    alphabet = _gpt2_byte_alphabet()
    merges = list(_merges(alphabet[ord(" ")]))
    words = [left + right for left, right in merges]
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *more_controls]
    tokens = [*alphabet, *words, *controls]

    def add_keys(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([f"{left} {right}" for left, right in merges])
        writer.add_bos_token_id(tokens.index("<|endoftext|>"))
        writer.add_eos_token_id(tokens.index("<|im_end|>"))
        writer.add_eot_token_id(tokens.index("<|im_end|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(
            [
                {"name": "default", "template": CHATML},
                {"name": named[0], "template": named[1]},
            ]
        )

    n_text = len(alphabet) + len(words)
    types = [TokenType.NORMAL] * n_text + [TokenType.CONTROL] * len(controls)
    loudness = np.concatenate([_byte_loudness(), np.ones(len(words)), np.zeros(len(controls))])
    return _Vocabulary(tokens, types, loudness, add_keys)


def _spm_vocabulary() -> _Vocabulary:
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    letters = ["▁", *(chr(c) for c in range(ord("!"), ord("~") + 1))]
    words = [left + right for left, right in _merges("▁")]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * (len(words) + len(letters))

    def add_keys(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        ranks = [-1.0 - rank for rank in range(len(words) + len(letters))]
        writer.add_token_scores([0.0] * (len(specials) + len(byte_tokens)) + ranks)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(True)

    loudness = np.concatenate([np.zeros(len(specials)), _byte_loudness(), np.ones(len(words) + len(letters))])
    return _Vocabulary([*specials, *byte_tokens, *words, *letters], types, loudness, add_keys)


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Pairs to join, best first: every word grows from its first letter, words behind a space before all."""
    seen: set[str] = set()
    for word in [*(space + w for w in _INITIAL_WORDS.split()), *_INNER_WORDS.split()]:
        for n in range(1, len(word)):
            if word[: n + 1] not in seen:
                seen.add(word[: n + 1])
                yield word[:n], word[n]


def _byte_loudness() -> npt.NDArray[np.floating]:
    """Bytes that are no printable ASCII are rarely generated: the text stays readable, mostly."""
    return np.array([1.0 if 32 <= b < 127 or b == ord("\n") else 0.5 for b in range(256)])


def _gpt2_byte_alphabet() -> list[str]:
    """The character that stands for each byte: itself if it is visible, else one from U+0100 on."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(b if b in visible else next(others)) for b in range(256)]


if __name__ == "__main__":
    main()
