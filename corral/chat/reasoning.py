"""Thoughts before the answer: which tags a model puts around them, and how they are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from corral.chat.grammar import GAP, Grammar, maybe, seq
from corral.chat.reader import Reader, ReaderSteps


class ReasoningFormat(enum.Enum):
    """Where thoughts go: nowhere apart, into `reasoning_content`, or into both."""

    NONE = "none"
    AUTO = "auto"
    DEEPSEEK = "deepseek"
    DEEPSEEK_LEGACY = "deepseek-legacy"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    start: str
    end: str


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
)


def choose_tags(template: str) -> ReasoningTags:
    """The tags a template mentions, or the most common ones."""
    return next((m for m in _KNOWN if m.start in template or m.end in template), _KNOWN[0])


def is_open(prompt: str, tags: ReasoningTags) -> bool:
    """Whether the model is to begin in the middle of its thoughts."""
    return prompt.rstrip().endswith(tags.start)


def read_reasoning(
    reader: Reader, tags: ReasoningTags, format: ReasoningFormat, opened: bool
) -> ReaderSteps[None]:
    """Thoughts at the beginning of an answer, if there are any."""
    begin = yield from reader.accept_past_space(tags.start)
    if begin is None and not opened:
        return
    if format is ReasoningFormat.NONE:
        reader.content(begin or "")
        found = yield from reader.until((tags.end,), reader.content)
        reader.content(found or "")
        return
    reasoning = _Trimmed(reader)
    if format is not ReasoningFormat.DEEPSEEK_LEGACY:
        yield from reader.until((tags.end,), reasoning.feed)
        yield from reader.skip_space()
        return

    def emit(text: str) -> None:
        reasoning.feed(text)
        reader.content(text)

    reader.content(tags.start)
    found = yield from reader.until((tags.end,), emit)
    reader.content(found or "")


class _Trimmed:
    """Passes thoughts on without the white space around them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._space = ""
        self._has_begun = False

    def feed(self, text: str) -> None:
        text = self._space + text
        if not self._has_begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._has_begun = self._has_begun or bool(kept)
        self._reader.reasoning(kept)


def reasoning_grammar(g: Grammar, tags: ReasoningTags, opened: bool) -> str:
    """The grammar of thoughts that may, or where they are open already must, come before anything else."""
    reasoning = seq(g.up_to(tags.end), GAP)
    return reasoning if opened else maybe(g.mark(tags.start), reasoning)
