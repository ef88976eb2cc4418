"""Chat templates of model files: found out about, and rendered with a conversation."""

from __future__ import annotations

from pathlib import Path

import corral.chat
from corral.chat.chat_format import Chat, ChatFormat
from corral.chat.template import ChatTemplate
from corral.core.errors import CorralError
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Limit, Target

_FILES = sorted((Path(corral.chat.__file__).parent / "templates").glob("*.jinja"))
_MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "bye"},
]


def parse(data: bytes) -> None:
    chat_format = ChatFormat(ChatTemplate(data.decode("utf-8", "replace"), "<s>", "</s>"))
    assert isinstance(chat_format.render(Chat(_MESSAGES)).text, str)


SEEDS = [path.read_bytes() for path in _FILES if path.stat().st_size < 8192]
WORDS = [
    b"{%",
    b"%}",
    b"{{",
    b"}}",
    b"for x in ",
    b"range(",
    b"messages",
    b"| tojson",
    b".__class__",
    b" * 9999",
]
WORDS += [
    b"{% set x = ",
    b"namespace(",
    b"loop.",
    b"[::-1]",
    b"raise_exception(",
    b"| list",
    b"'",
    b"-%}",
    b"**",
]
TARGET = Target("template", parse, SEEDS, mutated(SEEDS, WORDS), (CorralError,), Limit(cpu_s=10.0, mib=300.0))
