"""Edit an answer while it is generated: keep its beginning, write other words after it, and continue.

before   | kept | the model's words |
after    | kept | other words | new tokens ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from corral.api.choice import Choice
from corral.api.live_answers import Live
from corral.api.state import AppState
from corral.api.vocab import Vocab
from corral.core.errors import InvalidRequest
from corral.core.params import GenerationParams
from corral.core.result import ControlOutcome, Edited
from corral.text.output import OutputText

_FENCE = "\n"  # before a text whose first word would otherwise get a space


@dataclass(frozen=True, slots=True)
class Edit:
    """Keep the first `keep` characters that the client has of a choice, and continue with `text`."""

    index: int
    keep: int
    text: str


async def apply_edit(live: Live, edit: Edit, state: AppState) -> ControlOutcome:
    """Edit a choice of a running answer. Raises InvalidRequest if it has not as many characters."""
    source, choice = live.source, live.running(edit.index)
    if choice is None:
        return ControlOutcome.UNKNOWN
    if source is None or not source.can_change(choice) or _is_bound(choice.task.params):
        return ControlOutcome.UNCHANGEABLE
    if choice.edit is not None:
        return ControlOutcome.TOO_EARLY
    n_kept = source.renderer.locate(choice, edit.keep)
    if n_kept is None:
        raise InvalidRequest("must be a place in the text that the answer has so far", field="keep")
    edited = await state.pools.run_text(plan_edit, choice, n_kept, edit.text, state.model.vocab)
    if choice is not live.running(edit.index) or choice.edit is not None:
        return ControlOutcome.OVER
    live.stop_timer()
    task = msgspec.structs.replace(choice.task, given=edited.tokens, resume=[])
    choice.replace_task(edited, *state.runner.submit(task, source.record, source.media(choice)))
    return ControlOutcome.DONE


def plan_edit(choice: Choice, n_kept: int, words: str, vocab: Vocab) -> Edited:
    """Return the answer with other words after its first `n_kept` characters, as far as it can be sent: what
    may become a stop string is held back, as in every answer."""
    params = choice.task.params
    tokens = _tokenize(choice.tokens, choice.text[:n_kept], words, params, vocab)
    output = OutputText(params.stop, params.n_indent)
    text = "".join(output.feed(_piece(token, params, vocab)) for token in tokens)
    return Edited(task_id=choice.task.id, tokens=tokens, text=text)


def _is_bound(params: GenerationParams) -> bool:
    """Whether a grammar decides about the answer from its beginning."""
    bound = params.constraint
    return bound is not None and not (bound.trigger or bound.trigger_words or bound.trigger_tokens)


def _tokenize(
    tokens: Sequence[int], kept: str, words: str, params: GenerationParams, vocab: Vocab
) -> list[int]:
    """Return the tokens of the kept text as they were drawn, as far as they go, and those of the rest."""
    text = kept.encode("utf-8", "replace")
    n, end = _count_fitting(tokens, text, params, vocab)
    return [*tokens[:n], *_tokenize_inside(text[end:].decode() + words, vocab)]


def _count_fitting(
    tokens: Sequence[int], text: bytes, params: GenerationParams, vocab: Vocab
) -> tuple[int, int]:
    """Return how many of the tokens make up the beginning of the text, in whole characters, and its end."""
    n = end = at = 0
    for i, token in enumerate(tokens, 1):
        piece = _piece(token, params, vocab)
        if text[at : at + len(piece)] != piece:
            break
        at += len(piece)
        if _is_character_end(text, at):
            n, end = i, at
    return n, end


def _is_character_end(text: bytes, at: int) -> bool:
    return at == len(text) or (text[at] & 0xC0) != 0x80


def _tokenize_inside(text: str, vocab: Vocab) -> list[int]:
    """Tokenize the inside of a text: some vocabularies put a space before the first word."""
    if not text:
        return []
    tokens = vocab.tokenize(text, False, False)
    if b"".join(map(vocab.piece, tokens)) == text.encode():
        return tokens
    fence, fenced = vocab.tokenize(_FENCE, False, False), vocab.tokenize(_FENCE + text, False, False)
    return fenced[len(fence) :] if fenced[: len(fence)] == fence else tokens


def _piece(token: int, params: GenerationParams, vocab: Vocab) -> bytes:
    """Return the text of a token as the engine sends it."""
    if token in vocab.eog_tokens and not params.special:
        return b""
    return vocab.piece(token, params.special or token in params.preserved)
