"""Render a conversation to a prompt, and parse generated text to a message, in the format of one model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from corral.chat.capability import KEEP_REASONING, Capability, keeps_reasoning, probe
from corral.chat.format import Format, long_id, short_id
from corral.chat.formats import choose_format
from corral.chat.grammar import Grammar, TokenOf, any_of, json_value, seq
from corral.chat.message import Message, text_of
from corral.chat.normalize import in_parts, normalize_messages, relaxations
from corral.chat.prompt import Binding, Chat, Prompt
from corral.chat.reader import MessageParser, Reader, ReaderSteps
from corral.chat.reasoning import (
    ReasoningFormat,
    ReasoningTags,
    choose_tags,
    is_open,
    read_reasoning,
    reasoning_grammar,
)
from corral.chat.template import Template, TemplateError, TemplateLimit
from corral.chat.tool import ToolChoice
from corral.chat.tool_shape import complete_tools


class ChatFormat:
    """A template and everything derived from it."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.format: Format = choose_format(template.source)
        self.can: Capability = probe(lambda messages, tools: self._try(messages, tools, True, {}))
        self.keeps_reasoning = keeps_reasoning(lambda m, t: self._try(m, t, True, KEEP_REASONING))
        self._tags: ReasoningTags = choose_tags(template.source)
        self._thinks = self._tags.start in template.source or self._tags.end in template.source

    @property
    def reasoning_tags(self) -> ReasoningTags | None:
        """The tags around reasoning, unless the format parses reasoning itself."""
        return self._tags if self._thinks and not self.format.reads_reasoning else None

    @property
    def reasoning_end(self) -> str:
        return self._tags.end

    def render(self, chat: Chat) -> Prompt:
        """Render the prompt. If the template refuses the messages, simplify them until it accepts."""
        last = chat.messages[-1] if chat.is_continued else None
        messages = chat.messages[:-1] if last else chat.messages
        text = self._render(chat, messages, chat.add_generation_prompt or last is not None)
        opened = is_open(text, self._tags)
        if opened and (last is not None or not chat.enable_thinking):
            reasoning = last.get("reasoning_content", "") if last else ""
            text += reasoning + self._tags.end
            opened = False
        # compat: /v1/chat/completions: text parts of a continued message are joined with an empty line.
        return Prompt(text + text_of(last["content"], "\n\n") if last else text, opened)

    def bind(self, chat: Chat, prompt: Prompt, token_of: TokenOf) -> Binding | None:
        g, use, format = Grammar(token_of), chat.use, self.format
        answer = ""
        if chat.schema is not None:
            answer = seq(format.lead(g), format.wrap(g, json_value(chat.schema)))
        if use.is_possible and (use.choice is ToolChoice.REQUIRED or format.is_always_bound or answer):
            calls = seq(format.lead(g), g.mark(*format.trigger), format.calls(g, use))
            must_call = use.choice is ToolChoice.REQUIRED or not answer
            body = calls if must_call else any_of([calls, answer])
        elif use.is_possible:
            if not format.trigger:
                return None
            return Binding(g.build(format.calls(g, use)), "".join(format.trigger), format.is_trigger_first)
        elif answer:
            body = answer
        else:
            return None
        first = self._reasoning_first(g, chat, prompt)
        start = "" if prompt.is_thinking else self._tags.start
        return Binding(
            g.build(seq(first, body)),
            is_answer_apart=bool(format.trigger) and not _begins_json("".join(format.trigger)),
            reasoning=(start, self._tags.end) if first else ("", ""),
        )

    def parser(self, chat: Chat, prompt: Prompt) -> MessageParser:
        is_apart = chat.reasoning is not ReasoningFormat.NONE
        reader = Reader(short_id if self.format.has_short_ids else long_id, is_apart)
        return MessageParser(reader, self._parse(reader, chat, prompt))

    def markers(self, chat: Chat) -> tuple[str, ...]:
        """Texts that must appear in the output, even if they are control tokens."""
        tags = (self._tags.start, self._tags.end)
        is_read = chat.use.is_possible or self.format.wraps_content
        return (*tags, *self.format.markers) if is_read else tags

    def _render(self, chat: Chat, messages: list[Message], add_generation_prompt: bool) -> str:
        tools = [tool.definition for tool in chat.use.described] if chat.use.is_possible else []
        instruction = self.format.instruction if tools else ""
        adapted = normalize_messages(messages, [] if self.can.tools else tools, self.can, instruction)
        options = {"enable_thinking": chat.enable_thinking, **chat.options}
        try:
            return self._try(self._shape(adapted), tools, add_generation_prompt, options)
        except TemplateLimit:
            raise
        except TemplateError as error:
            for attempt, shown in self._attempts(adapted, tools):
                try:
                    return self._try(self._shape(attempt), shown, add_generation_prompt, options)
                except TemplateError:
                    continue
            raise error

    def _attempts(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> Iterator[tuple[list[Message], list[dict[str, Any]]]]:
        """Yield attempts for a template that refuses: with complete tools, then with simpler messages."""
        if tools:
            tools = complete_tools(tools)
            yield messages, tools
        for attempt in relaxations(messages):
            yield attempt, tools

    def _try(
        self, messages: list[Message], tools: list[dict[str, Any]], prompt: bool, options: Mapping[str, Any]
    ) -> str:
        return self.template.render(messages, tools, prompt, {**self.format.options(tools), **options})

    def _shape(self, messages: list[Message]) -> list[Message]:
        return in_parts(messages) if self.can.part_content else messages

    def _reasoning_first(self, g: Grammar, chat: Chat, prompt: Prompt) -> str:
        may_think = self._thinks and chat.enable_thinking and not self.format.reads_reasoning
        if prompt.is_thinking or (may_think and chat.reasoning is not ReasoningFormat.NONE):
            return reasoning_grammar(g, self._tags, prompt.is_thinking)
        return ""

    def _parse(self, reader: Reader, chat: Chat, prompt: Prompt) -> ReaderSteps[None]:
        if not self.format.reads_reasoning:
            yield from read_reasoning(reader, self._tags, chat.reasoning, prompt.is_thinking)
        if chat.use.is_possible or self.format.wraps_content:
            yield from self.format.parse(reader, chat.use)
        yield from reader.rest(reader.content)


def _begins_json(text: str) -> bool:
    return re.match(r'\s*[-0-9"{\[tfn]', text) is not None
