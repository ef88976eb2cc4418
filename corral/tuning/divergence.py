"""Measure how far models diverge on a text: their perplexities, and the KL divergence of their predictions.

Opens all models, evaluates the text window by window in each, and keeps only numbers. One thread.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, TokenArray
from corral.core.errors import CorralError, NonFiniteLogits
from corral.core.settings import EngineSettings
from corral.llama.context import Context
from corral.llama.library import LlamaError, lib
from corral.llama.model import Model
from corral.llama.vocab import NativeVocab
from corral.tuning.context import open_context

WINDOW = 512  # tokens; the first half is context and is not scored
_MIN_WINDOW = 16
_TEXT = "compare.txt"
_MAX_LOGITS = 1 << 24  # that a model returns at once: 64 MiB
_STACK_BYTES = 256 << 20  # some tokenizers recurse per character of a long text

_Doubles: TypeAlias = npt.NDArray[np.float64]
Pair: TypeAlias = tuple[int, int]  # of models, by index: A and B


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """B's predictions on a text compared with A's; errors are one standard error of the mean.

    KL is in nats. `top1`: the share of positions where both have the same most likely token.
    """

    n_tokens: int  # scored positions
    perplexity_a: float
    perplexity_b: float
    mean_kl: float
    mean_kl_error: float
    kl_median: float
    kl_p90: float
    kl_p99: float
    max_kl: float
    top1: float
    top1_error: float


def sample_text() -> str:
    """Return the default text for comparisons, a mix of typical server content."""
    return resources.files("corral.tuning").joinpath(_TEXT).read_text(encoding="utf-8")


def measure_divergences(
    paths: Sequence[str],
    pairs: Sequence[Pair],
    text: str,
    on_progress: Callable[[float], None],
    n_threads: int = 0,
) -> list[Divergence]:
    """Compare files with the same vocabulary, one result per pair; 0 threads: one per physical core."""
    every = [
        EngineSettings(model=path, n_threads=n_threads, flash_attn="off", warmup=False) for path in paths
    ]
    return compare_settings(every, pairs, text, on_progress)


def compare_settings(
    every: Sequence[EngineSettings],
    pairs: Sequence[Pair],
    text: str,
    on_progress: Callable[[float], None],
) -> list[Divergence]:
    """Compare models with given settings, such as KV cache types, flash attention and RoPE."""
    with ExitStack() as stack:
        models = [_open_model(settings, stack) for settings in every]
        for model in models[1:]:
            _check_vocabularies(models[0], model)
        vocab = models[0].vocab
        size = _window_size(models)
        windows = cut_windows(_tokenize(vocab, text), size, [vocab.bos] if vocab.adds_bos else [])
        n_rows = _row_count(size // 2, vocab.n_tokens)
        contexts = [
            stack.enter_context(closing(open_context(settings, model, size, size, n_outputs=n_rows)))
            for settings, model in zip(every, models, strict=True)
        ]
        scores: list[list[_Score]] = []  # a row for each position, a column for each pair
        for i, window in enumerate(windows):
            scores += _score(window, contexts, pairs, n_rows)
            on_progress((i + 1) / len(windows))
    return [_sum_up(column) for column in zip(*scores, strict=True)]


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of the text. `targets`: the token that follows each token of its second half."""

    tokens: TokenArray
    targets: TokenArray


def cut_windows(tokens: TokenArray, size: int, before: Sequence[int]) -> list[Window]:
    """Cut full windows, each after the tokens `before`; raises if there is none."""
    n_new = size - len(before)
    n_windows = (len(tokens) - 1) // n_new  # the last token of each window has a target, too
    if n_windows < 1:
        raise CorralError(f"the text has {len(tokens)} tokens; at least {n_new + 1} are needed to compare")
    windows = []
    for start in range(0, n_windows * n_new, n_new):
        piece = tokens[start : start + n_new + 1]
        inputs = np.concatenate([np.array(before, np.int32), piece[:-1]])
        windows.append(Window(inputs, piece[-(size - size // 2) :]))
    return windows


class _Score(NamedTuple):
    """The score of one position."""

    surprise_a: float  # negative log-likelihood of the actual token, in nats
    surprise_b: float
    kl: float
    is_same: bool


def _score(
    window: Window, contexts: Sequence[Context], pairs: Sequence[Pair], n_rows: int
) -> Iterator[list[_Score]]:
    half = len(window.tokens) // 2
    for context in contexts:
        context.trim(0, 0)
        _decode(context, 0, window.tokens[:half], 0)
    for start in range(half, len(window.tokens), n_rows):
        tokens = window.tokens[start : start + n_rows]
        for context in contexts:
            _decode(context, start, tokens, len(tokens))
        for i, target in enumerate(window.targets[start - half : start - half + n_rows]):
            back = len(tokens) - 1 - i
            expected = [_log_softmax(context.logits(0, back)) for context in contexts]
            yield [_score_position(expected[a], expected[b], int(target)) for a, b in pairs]


def _decode(context: Context, pos: int, tokens: TokenArray, n_logits: int) -> None:
    status = context.decode([Chunk(0, pos, tokens, n_logits)])
    if status is not DecodeStatus.OK:
        raise LlamaError(f"the text cannot be evaluated: {status.value}")


def _score_position(log_a: _Doubles, log_b: _Doubles, target: int) -> _Score:
    p_a = np.exp(log_a)
    with np.errstate(invalid="ignore"):  # tokens that are impossible for both
        terms = p_a * (log_a - log_b)
    kl = max(0.0, float(np.sum(terms, where=p_a > 0)))
    is_same = bool(log_a.argmax() == log_b.argmax())
    return _Score(-float(log_a[target]), -float(log_b[target]), kl, is_same)


def _log_softmax(logits: FloatArray) -> _Doubles:
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        values -= values.max()
        total = float(np.exp(values).sum())
    if not np.isfinite(total):
        raise NonFiniteLogits
    values -= np.log(total)
    return values


def _sum_up(scores: Sequence[_Score]) -> Divergence:
    surprise_a, surprise_b, kl, is_same = np.array(scores, np.float64).T
    median, p90, p99 = (float(value) for value in np.quantile(kl, [0.5, 0.9, 0.99]))
    return Divergence(
        n_tokens=len(scores),
        perplexity_a=float(np.exp(surprise_a.mean())),
        perplexity_b=float(np.exp(surprise_b.mean())),
        mean_kl=float(kl.mean()),
        mean_kl_error=_error_of_mean(kl),
        kl_median=median,
        kl_p90=p90,
        kl_p99=p99,
        max_kl=float(kl.max()),
        top1=float(is_same.mean()),
        top1_error=_error_of_mean(is_same),
    )


def _error_of_mean(values: _Doubles) -> float:
    with np.errstate(invalid="ignore"):  # if one is infinite
        return float(values.std(ddof=1) / np.sqrt(len(values)))


def _open_model(settings: EngineSettings, stack: ExitStack) -> Model:
    model = Model.load(settings)
    stack.callback(model.close)
    if model.vocab.type == lib.LLAMA_VOCAB_TYPE_NONE:
        raise CorralError(f"'{model.path}' has no vocabulary")
    has_encoder = bool(lib.llama_model_has_encoder(model.handle))
    if has_encoder or not (model.can_generate and model.is_causal):
        raise CorralError(f"'{model.path}' cannot be compared: it is not a generative decoder-only model")
    return model


def _check_vocabularies(a: Model, b: Model) -> None:
    """Raise unless all tokens are the same in both."""
    differ = "the models have different vocabularies"
    if a.vocab.n_tokens != b.vocab.n_tokens:
        counts = f"'{a.path}' has {a.vocab.n_tokens} tokens, '{b.path}' {b.vocab.n_tokens}"
        raise CorralError(f"{differ}: {counts}")
    if a.vocab.type != b.vocab.type:
        raise CorralError(f"{differ}: '{a.path}' and '{b.path}' are of different kinds")
    text = lib.llama_vocab_get_text
    for token in range(a.vocab.n_tokens):
        if text(a.vocab.handle, token) != text(b.vocab.handle, token):
            theirs = [model.vocab.detokenize([token]) for model in (a, b)]
            raise CorralError(
                f"{differ}: token {token} is {theirs[0]!r} in '{a.path}', {theirs[1]!r} in '{b.path}'"
            )


def _window_size(models: Sequence[Model]) -> int:
    size = min([WINDOW, *(model.n_ctx_train for model in models)]) // 2 * 2
    if size < _MIN_WINDOW:
        raise CorralError(f"a context of {size} tokens is too small for a comparison")
    return size


def _row_count(half: int, n_vocab: int) -> int:
    """Return how many positions are evaluated and scored at a time."""
    return min(half, max(_MAX_LOGITS // n_vocab // 8 * 8, 8))


def _tokenize(vocab: NativeVocab, text: str) -> TokenArray:
    """Tokenize in a thread with a large stack."""
    previous = threading.stack_size(_STACK_BYTES)
    try:
        with concurrent.futures.ThreadPoolExecutor(1, "tokenizer") as thread:
            tokens = thread.submit(vocab.tokenize, text, False, False).result()
    finally:
        threading.stack_size(previous)
    return np.array(tokens, np.int32)
