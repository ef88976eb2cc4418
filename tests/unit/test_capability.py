"""What a template can express, with llama-server's names."""

from __future__ import annotations

import pytest

from corral.api.render.capability import render_capability
from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate

_PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
_CALLS = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}%s{% endfor %}"
)
_FIRST = "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}"
_EACH = "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}"
_LOOP = "{% for m in messages %}%s{% endfor %}"
_THINKS = _LOOP.replace("%s", "{% if preserve_thinking %}{{ m.reasoning_content }}{% endif %}{{ m.content }}")
_PARTS = "{% for p in m.content %}{{ p.text }}{% endfor %}"
_TYPED = _LOOP.replace("%s", "{% if m.content is string %}{{ m.content }}{% else %}" + _PARTS + "{% endif %}")
_DUMPED = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "supported"),
    [
        (_PLAIN, {"string_content", "system_role"}),
        (_DUMPED, {"string_content", "system_role"}),
        (_TYPED, {"string_content", "typed_content", "system_role"}),
        (
            _CALLS.replace("%s", _FIRST),
            {"string_content", "system_role", "tools", "tool_calls", "object_arguments"},
        ),
        (
            _CALLS.replace("%s", _EACH),
            {
                "string_content",
                "system_role",
                "tools",
                "tool_calls",
                "object_arguments",
                "parallel_tool_calls",
            },
        ),
        (_THINKS, {"string_content", "system_role", "preserve_reasoning"}),
        (_PLAIN + "{{ reasoning_effort }}", {"string_content", "system_role", "reasoning_effort"}),
    ],
    ids=["plain", "dumped", "typed", "one call", "several calls", "reasoning", "effort"],
)
def test_what_a_template_supports(source, supported):
    rendered = render_capability(ChatFormat(ChatTemplate(source)))
    assert {name.removeprefix("supports_") for name, is_true in rendered.items() if is_true} == supported
