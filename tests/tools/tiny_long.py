"""Writes a tiny model for agents: `python -m tests.tools.tiny_long DIR`.

Their prompts have some 100,000 characters: it has a context of 64k tokens, and tokens for the words of
Python's help texts. Its template can show tools. Its answers end by themselves, but never at once: after a
line break, as at the end of a prompt, the hidden state has one direction, which is far from the end token's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from gguf import GGUFWriter, TokenType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD, Weights

N_CTX = 65536
N_WORD = 2500
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# One answer in ten ends at each token, roughly: its deviation is three times that of other logits.
END_LOUDNESS = 3.0
LINE_END = 60.0
TEMPLATE = Path(__file__).parent / "templates" / "qwen2.5.jinja"


def llama_long(directory: Path) -> Path:
    """A llama with a long context and a byte-level BPE vocabulary of words."""
    return tiny.write_file(directory / "llama-long.gguf", "llama", _fill)


ALL = (llama_long,)


def _fill(writer: GGUFWriter) -> None:
    alphabet = tiny._gpt2_byte_alphabet()
    merges = list(_merges(alphabet[ord(" ")]))
    words = [left + right for left, right in merges]
    tokens = [*alphabet, *words, *CONTROLS]
    weights = Weights(writer, 46)
    writer.add_name("tiny llama-long")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, tokens, merges)
    embeddings = np.random.RandomState(47).standard_normal((len(tokens), N_EMBD))
    embeddings[tokens.index(alphabet[ord("\n")])] = LINE_END * np.eye(N_EMBD)[0]
    weights.exact("token_embd.weight", embeddings)
    tiny._add_attention_keys(writer)
    tiny._add_attention_layer(weights, 0)
    weights.vector("output_norm.weight", N_EMBD)
    loudness = np.concatenate([tiny._byte_loudness(), np.ones(len(words)), [0.0, 0.0, END_LOUDNESS]])
    outputs = np.random.RandomState(48).standard_normal((len(tokens), N_EMBD)) / np.sqrt(N_EMBD)
    outputs *= 4.0 * loudness[:, None]
    outputs[tokens.index("<|im_end|>"), 0] = -LINE_END
    weights.exact("output.weight", outputs)


def _add_tokenizer(writer: GGUFWriter, tokens: list[str], merges: list[tuple[str, str]]) -> None:
    n_text = len(tokens) - len(CONTROLS)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * n_text + [TokenType.CONTROL] * len(CONTROLS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_eot_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE.read_text())


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Pairs to join, best first: every word grows from its first letter, after a space before all others."""
    counts = Counter(re.findall("[A-Za-z]{2,}", " ".join(topics[name] for name in sorted(topics))))
    words = [word for word, _ in counts.most_common(N_WORD)]
    seen: set[str] = set()
    for word in [space * 4, space * 8, *(space + word for word in words), *words]:
        for n in range(1, len(word)):
            if word[: n + 1] not in seen:
                seen.add(word[: n + 1])
                yield word[:n], word[n]


if __name__ == "__main__":
    tiny.main(ALL)
