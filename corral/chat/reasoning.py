"""Reasoning before the answer: the tags that models put around it, and how it is parsed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from corral.chat.grammar import GAP, Grammar, literal, maybe, seq
from corral.chat.reader import Reader, ReaderSteps


class ReasoningFormat(enum.Enum):
    """Where reasoning goes: into content only, into `reasoning_content`, or into both."""

    NONE = "none"
    AUTO = "auto"
    DEEPSEEK = "deepseek"
    DEEPSEEK_LEGACY = "deepseek-legacy"


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """`label`: text after `start` that is not part of the reasoning."""

    start: str
    end: str
    label: str = ""


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
    ReasoningTags("<|channel>", "<channel|>", "thought"),
)


def choose_tags(template: str) -> ReasoningTags:
    """Return the tags that a template mentions, or the most common ones."""
    return next((m for m in _KNOWN if m.start in template or m.end in template), _KNOWN[0])


def is_open(prompt: str, tags: ReasoningTags) -> bool:
    """Whether the prompt ends inside reasoning."""
    return prompt.rstrip().endswith(tags.start)


def read_reasoning(
    reader: Reader, tags: ReasoningTags, format: ReasoningFormat, opened: bool
) -> ReaderSteps[None]:
    """Read reasoning at the start of an answer, if there is any."""
    begin = yield from reader.accept_past_space(tags.start)
    if begin is None and not opened:
        return
    if format is ReasoningFormat.NONE:
        reader.content(begin or "")
        found = yield from reader.until((tags.end,), reader.content)
        reader.content(found or "")
        return
    reasoning = _Trimmed(reader)
    label = (yield from reader.accept(tags.label)) if begin and tags.label else None
    if format is not ReasoningFormat.DEEPSEEK_LEGACY:
        yield from reader.until((tags.end,), reasoning.feed)
        yield from reader.skip_space()
        return

    def emit(text: str) -> None:
        reasoning.feed(text)
        reader.content(text)

    reader.content(tags.start + (label or ""))
    found = yield from reader.until((tags.end,), emit)
    reader.content(found or "")


class _Trimmed:
    """Emits reasoning without the white space around it."""

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
    """Return the grammar of reasoning before the answer: required if the prompt opened it, otherwise
    optional."""
    reasoning = seq(g.up_to(tags.end), GAP)
    return reasoning if opened else maybe(g.mark(tags.start), literal(tags.label), reasoning)
