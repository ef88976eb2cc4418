"""Convert texts to token lists that are embedded, ranked or classified.

Pure but for the vocabulary it reads. An error names the input it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from corral.core.errors import InvalidRequest
from corral.core.media import span_around
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo
from corral.generate.prompt import Tokenizer, as_list, content_of, tokenize_mixed
from corral.generate.vocab import Vocab

_MAX_TOKEN_CHARS = 128  # a word that WordPiece does not know is one token, however long


@dataclass(frozen=True, slots=True)
class Inputs:
    tokens: list[list[int]]
    truncated: frozenset[int] = frozenset()
    is_list: bool = True

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))


@dataclass(frozen=True, slots=True)
class Fit:
    """Makes inputs fit into the model, or refuses them."""

    vocab: Vocab
    encoder: EncoderInfo
    truncate: bool
    tokenizer: Tokenizer  # also where media are marked
    max_numbers: int  # of all the vectors in an answer

    def text(self, text: str, name: str) -> str:
        """Truncate text that cannot fit however it is tokenized."""
        n_chars = self.encoder.n_tokens * max(self.vocab.max_piece_bytes, _MAX_TOKEN_CHARS)
        if len(text) <= n_chars:
            return text
        if self.truncate:
            return text[:n_chars]
        raise InvalidRequest(
            f"the text ({len(text)} characters) is too large to process, the limit is "
            f"{self.encoder.n_tokens} tokens; {self._remedy}",
            field=name,
        )

    def is_too_long(self, n: int) -> bool:
        return n > self.encoder.n_tokens

    def cut(self, tokens: list[int]) -> list[int]:
        """Truncate to the tokens that fit; the last one stays if it marks the end."""
        last = tokens[-1:] if tokens[-1] >= 0 and self.vocab.is_control(tokens[-1]) else []
        n = self.encoder.n_tokens - len(last)
        span = span_around(np.array(tokens, np.int32), n)
        return tokens[: n if span is None else span.start] + last

    def refuse(self, n: int, name: str) -> InvalidRequest:
        return InvalidRequest(
            f"the input ({n} tokens) is too large to process, the limit is {self.encoder.n_tokens} "
            f"tokens; {self._remedy}",
            field=name,
            n_prompt_tokens=n,
            n_max_tokens=self.encoder.n_tokens,
        )

    @property
    def _remedy(self) -> str:
        is_batch = self.encoder.n_tokens < self.encoder.n_ctx
        more = "increase the physical batch size (--ubatch-size)" if is_batch else "shorten it"
        return f'{more}, or send "truncate": true to cut it'


def prepare_inputs(value: Any, field: str, fit: Fit) -> Inputs:
    """Return the inputs of a request, in any form that a prompt can have."""
    items, is_list = as_list(value, field)
    _refuse_too_many(len(items), fit, field)
    tokens: list[list[int]] = []
    truncated: set[int] = set()
    for i, item in enumerate(items):
        row, is_cut = _tokenize(item, fit, f"{field}[{i}]" if is_list else field)
        tokens.append(row)
        if is_cut:
            truncated.add(i)
    if fit.encoder.pooling is Pooling.NONE:
        _refuse_too_many(sum(map(len, tokens)), fit, field)
    return Inputs(tokens, frozenset(truncated), is_list)


def prepare_pairs(query: str, documents: Sequence[str], field: str, template: str, fit: Fit) -> Inputs:
    """Return a prompt for each document: the model's template, or query and document as a pair."""
    if not documents:
        raise InvalidRequest("must not be empty", field=field)
    _refuse_too_many(len(documents), fit, field)
    query = replace(fit, truncate=False).text(query, "query")
    make = partial(_fill, template, query) if template else partial(_join, _tokens_of(query, fit))
    tokens: list[list[int]] = []
    truncated: set[int] = set()
    for i, document in enumerate(documents):
        name = f"{field}[{i}]"
        text = fit.text(document, name)
        row, n = make(text, fit)
        if not row:
            raise InvalidRequest("must not be empty", field=name)
        if fit.is_too_long(len(row)):
            raise fit.refuse(n, "query" if fit.truncate else name)
        if fit.is_too_long(n) or text != document:
            truncated.add(i)
        tokens.append(row)
    return Inputs(tokens, frozenset(truncated))


def _fill(template: str, query: str, document: str, fit: Fit) -> tuple[list[int], int]:
    """Return the template's prompt, truncated if needed, and its full length."""
    whole = tokens = _fill_in(template, query, document, fit)
    while fit.truncate and document and fit.is_too_long(len(tokens)):
        document = document[: len(document) * fit.encoder.n_tokens // len(tokens)]
        tokens = _fill_in(template, query, document, fit)
    return tokens, len(whole)


def _fill_in(template: str, query: str, document: str, fit: Fit) -> list[int]:
    values = {"{query}": query, "{document}": document}
    text = re.sub("|".join(values), lambda place: values[place[0]], template)
    return fit.vocab.tokenize(text, add_special=False, parse_special=True)


def _join(query: list[int], document: str, fit: Fit) -> tuple[list[int], int]:
    """Return both texts with their special tokens, truncated if needed, and the full length."""
    tokens = _tokens_of(document, fit)
    n_around = len(fit.vocab.pair(query, []))
    n = n_around + len(tokens)
    if fit.truncate:
        tokens = tokens[: max(0, fit.encoder.n_tokens - n_around)]
    return fit.vocab.pair(query, tokens), n


def _tokens_of(text: str, fit: Fit) -> list[int]:
    return fit.vocab.tokenize(text, add_special=False, parse_special=False)


def _tokenize(item: Any, fit: Fit, name: str) -> tuple[list[int], bool]:
    """Return the tokens of an input, and whether it was truncated."""
    if isinstance(item, dict) and isinstance(item.get("content"), list):
        item = "".join(_part_texts(item["content"], name))
    content = content_of(item, name)
    parts = [content] if isinstance(content, str) else content
    short = [fit.text(part, name) if isinstance(part, str) else part for part in parts]
    tokens = tokenize_mixed(short, fit.tokenizer, True, True, name)
    if not tokens:
        raise InvalidRequest("Input content cannot be empty", field=name)
    if not fit.is_too_long(len(tokens)):
        return tokens, short != parts
    if not fit.truncate:
        raise fit.refuse(len(tokens), name)
    return fit.cut(tokens), True


def _part_texts(parts: list[Any], name: str) -> Iterator[str]:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "media") or not isinstance(part.get("text"), str):
            raise InvalidRequest("the parts of 'content' must have the type 'text'", field=name)
        yield part["text"]


def _refuse_too_many(n_rows: int, fit: Fit, field: str) -> None:
    n_embd = fit.encoder.n_embd
    if n_rows * n_embd > fit.max_numbers:
        raise InvalidRequest(
            f"{n_rows} vectors of {n_embd} values are too many for one response; the limit is "
            f"{fit.max_numbers // n_embd} vectors (--max-response-mb)",
            field=field,
        )
