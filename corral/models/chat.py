"""Chat settings of this server: templates and defaults from the command line and the model file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from corral.chat.chat_format import ChatFormat
from corral.chat.guard import Guard
from corral.chat.named import named_template
from corral.chat.prompt import Chat
from corral.chat.reasoning import ReasoningFormat
from corral.chat.template import Template
from corral.core.errors import CorralError, Unavailable
from corral.core.settings import ServerSettings
from corral.generate.model import ChatSettings
from corral.generate.vocab import Vocab

Compile = Callable[[str, str, str], Template]  # source, BOS and EOS
_log = logging.getLogger("corral")


def chat_settings(
    settings: ServerSettings, templates: Mapping[str, str], vocab: Vocab, compile: Compile
) -> ChatSettings:
    """Build the chat settings. `templates`: those of the model; the default has an empty name, `tool_use` is
    optional."""
    source = _chosen_template(settings)
    if source:
        chat_format = tool_format = _make_format(source, vocab, compile)
    else:
        chat_format = _own_format(templates.get("", ""), vocab, compile)
        special = templates.get("tool_use")
        tool_format = _own_format(special, vocab, compile) if special else chat_format
    return ChatSettings(
        chat_format=chat_format,
        tool_format=tool_format,
        options=_template_options(settings),
        reasoning=ReasoningFormat(settings.reasoning_format),
        reasoning_budget=settings.reasoning_budget,
        budget_message=settings.reasoning_budget_message,
        prefill=settings.prefill_assistant,
        has_jinja=settings.jinja,
        json_whitespace=settings.json_whitespace,
        guard=None if settings.parse_special else Guard(vocab.control_texts),
        turn_end=_turn_end(chat_format, vocab),
    )


def _turn_end(chat_format: ChatFormat, vocab: Vocab) -> int:
    """Return the token that ends messages. It is read from a rendered example, since the metadata of many
    models name another one."""
    messages = [{"role": role, "content": "-"} for role in ("user", "assistant", "user")]
    try:
        text = chat_format.render(Chat(messages=messages)).text
    except CorralError:
        return vocab.eot
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    ends = [token for token in tokens if token in vocab.eog_tokens]
    return max(ends, key=lambda end: (ends.count(end), end == vocab.eot), default=vocab.eot)


def _chosen_template(settings: ServerSettings) -> str:
    if settings.chat_template_file:
        try:
            return Path(settings.chat_template_file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CorralError(f"cannot read --chat-template-file: {error}") from None
    return named_template(settings.chat_template) or settings.chat_template


def _own_format(source: str, vocab: Vocab, compile: Compile) -> ChatFormat:
    """Return the format of the model's own template, or ChatML if it is missing or broken."""
    try:
        return _make_format(source or _chatml(), vocab, compile)
    except Unavailable:
        raise  # the template may be sound
    except CorralError as error:
        _log.warning("%s; using ChatML instead", error.message)
        return _make_format(_chatml(), vocab, compile)


def _chatml() -> str:
    source = named_template("chatml")
    assert source is not None
    return source


def _make_format(source: str, vocab: Vocab, compile: Compile) -> ChatFormat:
    return ChatFormat(compile(source, vocab.bos_text, vocab.eos_text))


def _template_options(settings: ServerSettings) -> dict[str, Any]:
    try:
        options = orjson.loads(settings.chat_template_kwargs or "{}")
    except orjson.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise CorralError("--chat-template-kwargs must be a JSON object")
    effort = settings.reasoning_effort
    reasons = settings.reasoning != "off" and effort != "none"
    own = {} if effort in ("default", "none") else {"reasoning_effort": effort}
    return {"enable_thinking": reasons, **own, **options}
