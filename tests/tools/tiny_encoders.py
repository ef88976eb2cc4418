"""Writes tiny models that answer with vectors and scores: `python -m tests.tools.tiny_encoders DIR`.

Three BERTs (embedding, reranking, classifying), three of its relatives, and two decoders (an embedding of the
last token, a reranker with a prompt), random as in `tiny_models`. All metadata is what llama.cpp's converter
writes for real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD, N_LAYER, Weights

N_CTX_BERT = 128
N_T5_BUCKETS = 32
N_MODERN_WINDOW = 16
LAYER_NORM_EPS = 1e-12
LABELS = ("negative", "neutral", "positive")
RERANK_LABELS = ("yes", "no")
RERANK = (
    '<|im_start|>system\nDoes the Document answer the Query? Say "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
)

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIALS))

_PUNCTUATION = ".,;:?!'\"()-"
_WORDS = (
    "the a of and to in is it was for on are with as that this not be have you "
    "what where who how why cat dog house river city water fire king queen book time day night world "
    "capital france paris berlin hello good bad great love hate red green blue big small run walk eat"
)
_ENDINGS = "##es ##ed ##ing ##ly ##er ##est ##ness ##ful"


def bert_embed(directory: Path) -> Path:
    """A BERT whose vector of a text is the mean over its tokens."""
    return _write_bert(directory / "bert-embed.gguf", 61, PoolingType.MEAN)


def bert_rerank(directory: Path) -> Path:
    """A BERT with a classification head of one output: the score of a pair of texts."""
    return _write_bert(directory / "bert-rerank.gguf", 62, PoolingType.RANK, n_cls_out=1)


def bert_classify(directory: Path) -> Path:
    """A BERT with a classification head of three outputs that have names."""
    path = directory / "bert-classify.gguf"
    return _write_bert(path, 63, PoolingType.RANK, n_cls_out=len(LABELS), labels=LABELS)


def llama_last(directory: Path) -> Path:
    """The weights of `tiny_models.llama_bpe`; a text ends with EOS, whose row is the text's vector."""
    recipe = tiny._Recipe("llama", 46, _eos_vocabulary, _add_llama_last)
    return tiny._write(directory / "llama-last.gguf", recipe)


def qwen3_rerank(directory: Path) -> Path:
    """A decoder with the outputs "yes" and "no" and a prompt named "rerank" to put the texts into."""
    make_vocabulary = partial(tiny._bpe_vocabulary, ("rerank", RERANK))
    recipe = tiny._Recipe("qwen3", 64, make_vocabulary, _add_qwen3_rerank)
    return tiny._write(directory / "qwen3-rerank.gguf", recipe)


def t5_encoder(directory: Path) -> Path:
    """The encoder of a T5 without its decoder: positions are a bias of the attention."""
    return tiny.write_file(directory / "t5-encoder.gguf", "t5encoder", _fill_t5)


def nomic_embed(directory: Path) -> Path:
    """A Nomic BERT: positions turn queries and keys, and gates are in its feed-forward layers."""
    return tiny.write_file(directory / "nomic-embed.gguf", "nomic-bert", _fill_nomic)


def modern_classify(directory: Path) -> Path:
    """A ModernBERT with a window in some layers and a head of three outputs over the mean."""
    return tiny.write_file(directory / "modern-classify.gguf", "modern-bert", _fill_modern)


ALL = (
    bert_embed,
    bert_rerank,
    bert_classify,
    llama_last,
    qwen3_rerank,
    t5_encoder,
    nomic_embed,
    modern_classify,
)


def word_piece_tokens(vocabulary: Sequence[str], specials: Sequence[str] = SPECIALS) -> list[str]:
    """A WordPiece vocabulary as GGUF spells it: "##ing" is "ing", and what begins a word begins with ▁."""
    return [_gguf_piece(piece) if piece not in specials else piece for piece in vocabulary]


def _gguf_piece(piece: str) -> str:
    return piece[2:] if piece.startswith("##") else f"▁{piece}"


def _write_bert(
    path: Path, seed: int, pooling: PoolingType, n_cls_out: int = 0, labels: Sequence[str] = ()
) -> Path:
    def fill(writer: GGUFWriter) -> None:
        writer.add_name(f"tiny {path.stem}")
        weights = Weights(writer, seed)
        _add_bert_keys(writer, pooling)
        _add_bert(weights, _add_word_pieces(writer))
        if n_cls_out:
            _add_head(weights, n_cls_out)
        if labels:
            writer.add_classifier_output_labels(labels)

    return tiny.write_file(path, "bert", fill)


def _add_bert_keys(writer: GGUFWriter, pooling: PoolingType) -> None:
    _add_sizes(writer)
    writer.add_layer_norm_eps(LAYER_NORM_EPS)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)


def _add_sizes(writer: GGUFWriter) -> None:
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(N_CTX_BERT)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYER)
    writer.add_head_count(N_HEAD)


def _add_word_pieces(writer: GGUFWriter) -> int:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(digit) for digit in range(10)]
    inner = [f"##{letter}" for letter in letters]
    words = [word for word in _WORDS.split() if word not in letters]
    tokens = word_piece_tokens([*SPECIALS, *_PUNCTUATION, *letters, *inner, *words, *_ENDINGS.split()])
    n_text = len(tokens) - len(SPECIALS)
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("bert-bge")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIALS) + [TokenType.NORMAL] * n_text)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_unk_token_id(UNK)
    writer.add_sep_token_id(SEP)
    writer.add_pad_token_id(PAD)
    writer.add_mask_token_id(MASK)
    writer.add_uint32("tokenizer.ggml.cls_token_id", CLS)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(False)
    return len(tokens)


def _add_bert(weights: Weights, n_vocab: int) -> None:
    # Gains of sqrt(N_EMBD) make unit-variance rows: the word counts for more than where it stands.
    unit = N_EMBD**0.5
    weights.matrix("token_embd.weight", n_vocab, N_EMBD, gain=unit)
    weights.matrix("token_types.weight", 2, N_EMBD, gain=0.2 * unit)
    weights.matrix("position_embd.weight", N_CTX_BERT, N_EMBD, gain=0.5 * unit)
    _add_layer_norm(weights, "token_embd_norm")
    for i in range(N_LAYER):
        _add_linear(weights, f"blk.{i}.attn_q", N_EMBD, N_EMBD, gain=1.5)
        _add_linear(weights, f"blk.{i}.attn_k", N_EMBD, N_EMBD, gain=1.5)
        _add_linear(weights, f"blk.{i}.attn_v", N_EMBD, N_EMBD, gain=1.5)
        _add_linear(weights, f"blk.{i}.attn_output", N_EMBD, N_EMBD)
        _add_layer_norm(weights, f"blk.{i}.attn_output_norm")
        _add_linear(weights, f"blk.{i}.ffn_up", N_FF, N_EMBD, gain=1.5)
        _add_linear(weights, f"blk.{i}.ffn_down", N_EMBD, N_FF)
        _add_layer_norm(weights, f"blk.{i}.layer_output_norm")


def _add_head(weights: Weights, n_cls_out: int) -> None:
    _add_linear(weights, "cls", N_EMBD, N_EMBD)
    _add_linear(weights, "cls.output", n_cls_out, N_EMBD, gain=4.0)


def _add_linear(weights: Weights, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
    weights.matrix(f"{name}.weight", n_out, n_in, gain)
    weights.noise(f"{name}.bias", n_out, mean=0.0, deviation=0.2)


def _add_layer_norm(weights: Weights, name: str) -> None:
    weights.noise(f"{name}.weight", N_EMBD, mean=1.0, deviation=0.2)
    weights.noise(f"{name}.bias", N_EMBD, mean=0.0, deviation=0.2)


def _fill_nomic(writer: GGUFWriter) -> None:
    weights = Weights(writer, 66)
    writer.add_name("tiny nomic-embed")
    _add_bert_keys(writer, PoolingType.MEAN)
    writer.add_rope_freq_base(1000.0)
    n_vocab = _add_word_pieces(writer)
    weights.matrix("token_embd.weight", n_vocab, N_EMBD, gain=N_EMBD**0.5)
    weights.matrix("token_types.weight", 2, N_EMBD)
    _add_layer_norm(weights, "token_embd_norm")
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.matrix(f"blk.{i}.{name}.weight", N_EMBD, N_EMBD)
        _add_layer_norm(weights, f"blk.{i}.attn_output_norm")
        weights.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF)
        _add_layer_norm(weights, f"blk.{i}.layer_output_norm")


def _fill_modern(writer: GGUFWriter) -> None:
    weights = Weights(writer, 67)
    writer.add_name("tiny modern-classify")
    _add_bert_keys(writer, PoolingType.RANK)
    writer.add_rope_freq_base(160000.0)
    writer.add_rope_freq_base_swa(10000.0)
    writer.add_sliding_window(N_MODERN_WINDOW)
    writer.add_sliding_window_pattern(2)
    writer.add_classifier_output_labels(LABELS)
    n_vocab = _add_word_pieces(writer)
    weights.matrix("token_embd.weight", n_vocab, N_EMBD, gain=N_EMBD**0.5)
    for name in ("token_embd_norm", "output_norm", "cls.norm"):
        weights.vector(f"{name}.weight", N_EMBD)
    for i in range(N_LAYER):
        if i:
            weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.attn_qkv.weight", 3 * N_EMBD, N_EMBD)
        weights.matrix(f"blk.{i}.attn_output.weight", N_EMBD, N_EMBD)
        weights.vector(f"blk.{i}.ffn_norm.weight", N_EMBD)
        weights.matrix(f"blk.{i}.ffn_up.weight", 2 * N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF)
    weights.matrix("cls.weight", N_EMBD, N_EMBD)
    _add_linear(weights, "cls.output", len(LABELS), N_EMBD, gain=4.0)


def _fill_t5(writer: GGUFWriter) -> None:
    vocabulary = _eos_vocabulary()
    weights = Weights(writer, 65)
    writer.add_name("tiny t5-encoder")
    _add_sizes(writer)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_relative_attn_buckets_count(N_T5_BUCKETS)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    weights.matrix("token_embd.weight", len(vocabulary.tokens), N_EMBD, gain=N_EMBD**0.5)
    weights.matrix("enc.blk.0.attn_rel_b.weight", N_T5_BUCKETS, N_HEAD, gain=2.0)
    for i in range(N_LAYER):
        weights.vector(f"enc.blk.{i}.attn_norm.weight", N_EMBD)
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            weights.matrix(f"enc.blk.{i}.{name}.weight", N_EMBD, N_EMBD)
        weights.vector(f"enc.blk.{i}.ffn_norm.weight", N_EMBD)
        weights.matrix(f"enc.blk.{i}.ffn_up.weight", N_FF, N_EMBD)
        weights.matrix(f"enc.blk.{i}.ffn_down.weight", N_EMBD, N_FF)
    weights.vector("enc.output_norm.weight", N_EMBD)


def _eos_vocabulary() -> tiny._Vocabulary:
    vocabulary = tiny._bpe_vocabulary()

    def add_keys(writer: GGUFWriter) -> None:
        vocabulary.add_keys(writer)
        writer.add_add_eos_token(True)

    return replace(vocabulary, add_keys=add_keys)


def _add_llama_last(writer: GGUFWriter, weights: Weights) -> None:
    writer.add_pooling_type(PoolingType.LAST)
    tiny._add_llama(writer, weights)


def _add_qwen3_rerank(writer: GGUFWriter, weights: Weights) -> None:
    writer.add_pooling_type(PoolingType.RANK)
    writer.add_classifier_output_labels(RERANK_LABELS)
    tiny._add_attention_keys(writer)
    for i in range(N_LAYER):
        tiny._add_attention_layer(weights, i)
        weights.noise(f"blk.{i}.attn_q_norm.weight", N_EMBD_HEAD, mean=1.5, deviation=0.2)
        weights.noise(f"blk.{i}.attn_k_norm.weight", N_EMBD_HEAD, mean=1.5, deviation=0.2)
    weights.matrix("cls.output.weight", len(RERANK_LABELS), N_EMBD)


if __name__ == "__main__":
    tiny.main(ALL)
