"""The negative prompt of a guided request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from corral.core.errors import ContextExceeded, InvalidRequest
from corral.core.params import Guidance

FIELD = "cfg_negative_prompt"


class Tokenizer(Protocol):
    @property
    def n_tokens(self) -> int: ...

    @property
    def max_piece_bytes(self) -> int: ...

    @property
    def bos(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...


def prepare_guidance(
    given: Mapping[str, Any], vocab: Tokenizer, n_ctx: int, default: Guidance | None
) -> Guidance | None:
    """Where a request says only one of the two, the server's default says the other."""
    scale = given.get("cfg_scale", default.scale if default else 1.0)
    if scale == 1.0:
        return None
    prompt = given.get(FIELD)
    if prompt is None and default is not None:
        return Guidance(scale, default.negative)
    return make_guidance(scale, prompt or "", vocab, n_ctx)


def make_guidance(scale: float, prompt: str | list[int], vocab: Tokenizer, n_ctx: int) -> Guidance:
    if isinstance(prompt, str):
        n_least = len(prompt) // vocab.max_piece_bytes
        if n_least >= n_ctx:
            raise ContextExceeded(n_least, n_ctx)
        tokens = vocab.tokenize(prompt, add_special=True, parse_special=True)
    else:
        tokens = prompt
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab.n_tokens:
            raise InvalidRequest(f"token ids go from 0 to {vocab.n_tokens - 1}", field=FIELD)
    if len(tokens) >= n_ctx:
        raise ContextExceeded(len(tokens), n_ctx)
    # Nothing to continue: what begins any text will do.
    return Guidance(scale, tuple(tokens) or (max(vocab.bos, 0),))
