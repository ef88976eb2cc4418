"""Chat templates of model files: probed, and rendered with a conversation, in the template process."""

from __future__ import annotations

from pathlib import Path

import corral.chat
from corral.chat.chat_format import ChatFormat
from corral.chat.prompt import Chat
from corral.core.errors import CorralError
from corral.link.renderer import Renderer
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Limit, Target

_FILES = sorted((Path(corral.chat.__file__).parent / "templates").glob("*.jinja"))
_MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "bye"},
]


_RENDERER = Renderer(10.0)


def parse(data: bytes) -> None:
    chat_format = ChatFormat(_RENDERER.template(data.decode("utf-8", "replace"), "<s>", "</s>"))
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
    b" * 999999999",
    b" ** 99",
    b"| center(999999999)",
    b"| replace('', messages)",
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
TARGET = Target("template", parse, SEEDS, mutated(SEEDS, WORDS), (CorralError,), Limit(cpu_s=1.0, mib=100.0))
