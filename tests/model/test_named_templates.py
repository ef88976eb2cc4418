"""Every named template writes what libllama writes under that name."""

from __future__ import annotations

import ctypes

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llama_cpp import llama_cpp as lib

from corral.chat.named import NAMES, named_template

CONTENTS = {
    "system": " \tBe brief. ",
    "user": "\n Wie geht's, <b>世界</b>? {{ 1 }}\n",
    "assistant": "\v\fFine & well. 🙂 \r\n",
    "tool": ' {"answer": 42}\n',
}
# Blanks to Python, but not to C.
WIDE_BLANKS = "\u00a0\u3000\u0085\x1c"
CONVERSATIONS = [
    "system user",
    "user",
    "user assistant user",
    "system user assistant user",
    "user assistant",
    "system user assistant",
    "system",
    "system system user system user",
    "system assistant user",
    "user system assistant assistant user user",
    "user assistant_tool_call tool assistant",
    "assistant tool function user model developer",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_libllamas(name):
    template = _environment().from_string(named_template(name))
    for roles in CONVERSATIONS:
        for chat in _chats(roles.split()):
            for add in (False, True):
                assert _render(template, chat, add) == _apply(name, chat, add)


def test_names_are_libllamas():
    n_names = lib.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * n_names)()
    lib.llama_chat_builtin_templates(names, n_names)
    assert tuple(name.decode() for name in names) == NAMES


@pytest.mark.parametrize("name", ["", "nothing", "../named", "chatml.jinja", "CHATML"])
def test_other_names_are_unknown(name):
    assert named_template(name) is None


def _chats(roles):
    """The same turns with blanks around, with blanks that only Python strips, without, and empty."""
    spaced = [(role, CONTENTS.get(role, " other ")) for role in roles]
    yield spaced
    yield [(role, f"{WIDE_BLANKS}{text}{WIDE_BLANKS}") for role, text in spaced]
    yield [(role, f"{i}{text}{i}") for i, (role, text) in enumerate(spaced)]
    yield [(role, "") for role in roles]


def _environment():
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )


def _render(template, chat, add_generation_prompt):
    return template.render(
        messages=[{"role": role, "content": content} for role, content in chat],
        add_generation_prompt=add_generation_prompt,
        bos_token="<bos>",
        eos_token="<eos>",
    )


def _apply(name, chat, add_generation_prompt):
    messages = (lib.llama_chat_message * len(chat))(*((r.encode(), c.encode()) for r, c in chat))
    call = (name.encode(), messages, len(chat), add_generation_prompt)
    n_bytes = lib.llama_chat_apply_template(*call, None, 0)
    assert n_bytes >= 0
    buffer = ctypes.create_string_buffer(n_bytes + 1)
    assert lib.llama_chat_apply_template(*call, buffer, n_bytes + 1) == n_bytes
    return buffer.value.decode()
