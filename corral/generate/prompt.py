"""Convert prompts to tokens: texts, token ids, and mixes of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from corral.core.errors import ContextExceeded, InvalidRequest
from corral.generate.vocab import Vocab
from corral.text.vocab import Segment


class Tokenizer(Protocol):
    """A vocabulary, optionally with support for marked media in texts."""

    @property
    def n_tokens(self) -> int: ...

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]: ...


def as_list(prompt: Any, field: str) -> tuple[list[Any], bool]:
    """Return the prompts in a field, and whether it is a list of them; a list with tokens is one prompt."""
    is_list = isinstance(prompt, list) and not any(_is_token(item) for item in prompt)
    items = prompt if is_list else [prompt]
    if not items:
        raise InvalidRequest("must not be empty", field=field)
    return items, is_list


def content_of(prompt: Any, field: str) -> str | list[Any]:
    """Return the content of a prompt: a text, or a list of texts and tokens."""
    if isinstance(prompt, dict) and "prompt_string" in prompt:
        prompt = prompt["prompt_string"]
    if not isinstance(prompt, str | list):
        raise InvalidRequest(
            "must be a string, a list of tokens, a list of mixed strings and tokens, "
            "or an object with 'prompt_string'",
            field=field,
        )
    return prompt


def tokenize_mixed(
    content: str | Sequence[Any],
    tokenizer: Tokenizer,
    add_special: bool,
    parse_special: bool,
    field: str,
) -> list[int]:
    """Tokenize a text, or texts mixed with token ids; special tokens are added only to a leading text."""
    items = [content] if isinstance(content, str) else content
    texts = [(item, i) for i, item in enumerate(items) if isinstance(item, str)]
    segments = [(text, add_special and i == 0, parse_special) for text, i in texts]
    tokenized = iter(tokenizer.tokenize_all(segments))
    if isinstance(content, str):
        return next(tokenized)
    tokens: list[int] = []
    n_vocab = tokenizer.n_tokens
    for item in items:
        if isinstance(item, str):
            tokens += next(tokenized)
        else:
            tokens.append(check_token(item, n_vocab, field))
    return tokens


def check_token(item: Any, n_vocab: int, field: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < n_vocab:
        raise InvalidRequest(
            f"contains an invalid token: {item!r:.40} (ids go from 0 to {n_vocab - 1})", field=field
        )
    return item


def refuse_hopeless(prompt: str | list[Any], vocab: Vocab, n_ctx: int) -> None:
    """Refuse text that exceeds the context however it is tokenized."""
    if isinstance(prompt, list):
        if len(prompt) > 4 * n_ctx:
            raise ContextExceeded(len(prompt), n_ctx)
        n_chars = sum(len(item) for item in prompt if isinstance(item, str))
    else:
        n_chars = len(prompt)
    n_least = n_chars // vocab.max_piece_bytes
    if n_least >= n_ctx:
        raise ContextExceeded(n_least, n_ctx)


def _is_token(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)
