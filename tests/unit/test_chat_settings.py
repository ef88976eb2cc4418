"""How a server's options and its model's templates become the way it chats."""

from __future__ import annotations

import pytest

from corral.chat.jinja_template import ChatTemplate
from corral.chat.reasoning import ReasoningFormat
from corral.core.errors import CorralError, Unavailable
from corral.core.settings import ServerSettings
from corral.generate.model import ChatSettings
from corral.link.renderer import Renderer
from corral.models.chat import chat_settings
from tests.unit.fake import FakeVocab


def settings_of(templates: dict[str, str], **server) -> ChatSettings:
    return chat_settings(ServerSettings(**server), templates, FakeVocab(), ChatTemplate)


def test_the_models_own_templates_come_first():
    chat = settings_of({"": "own", "tool_use": "tools"})
    assert (chat.chat_format.template.source, chat.tool_format.template.source) == ("own", "tools")
    assert settings_of({"": "own"}).tool_format.template.source == "own"
    assert settings_of({"": "own", "tool_use": "t"}, chat_template="x").tool_format.template.source == "x"


def test_chatml_takes_the_place_of_none_and_of_a_broken_one(caplog):
    assert "<|im_start|>" in settings_of({}).chat_format.template.source
    assert "<|im_start|>" in settings_of({"": "{% if %}"}).chat_format.template.source
    assert "ChatML" in caplog.text


def test_a_broken_template_that_was_asked_for_is_an_error(tmp_path):
    for server in (
        {"chat_template": "{% if %}"},
        {"chat_template_kwargs": "[1]"},
        {"chat_template_kwargs": "{"},
    ):
        with pytest.raises(CorralError):
            settings_of({}, **server)
    path = tmp_path / "own.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(CorralError, match="--chat-template-file"):
        settings_of({}, chat_template_file=str(path))


def test_a_template_that_could_not_be_tried_is_not_replaced():
    """The renderer is not there: that says nothing about the template."""
    tried = []

    def compile(*template: str) -> ChatTemplate:
        tried.append(template)
        if len(tried) == 1:
            raise Unavailable("the renderer is down")
        return ChatTemplate(*template)

    with pytest.raises(Unavailable):
        chat_settings(ServerSettings(), {"": "own"}, FakeVocab(), compile)


def test_options_reach_the_chat():
    chat = settings_of(
        {}, reasoning_format="none", prefill_assistant=False, parse_special=False, reasoning="off"
    )
    assert chat.reasoning is ReasoningFormat.NONE
    assert not chat.prefill
    assert chat.guard is not None
    assert chat.options == {"enable_thinking": False}


def test_chatml_takes_the_place_of_one_that_exceeds_its_limits(caplog):
    renderer = Renderer(10.0)
    hostile = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    chat = chat_settings(ServerSettings(), {"": hostile}, FakeVocab(), renderer.template)
    renderer.close()
    assert "<|im_start|>" in chat.chat_format.template.source
    assert "ChatML" in caplog.text
