"""Options: chat."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("--chat-template",),
        "chat template: the name of a well-known one, or jinja (default: the model's own, else chatml)",
        "TEMPLATE",
        parse=value.template,
    ),
    Option(("--chat-template-file",), "file with a chat template in jinja", path=PathUse.TEXT),
    Option(
        ("--chat-template-kwargs",),
        "more names for the chat template, as a JSON object",
        "JSON",
        parse=value.json_object,
    ),
    Option(("--jinja",), "allow tools, which need jinja templates", negative=("--no-jinja",)),
    Option(
        ("-rea", "--reasoning"),
        "whether models that can think do so unless a request says otherwise; auto: yes",
        choices=("on", "off", "auto"),
    ),
    Option(
        ("--reasoning-format",),
        "where a model's thoughts go: none leaves them in the content, deepseek puts them into "
        "reasoning_content, deepseek-legacy does both, auto is deepseek",
        "FORMAT",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
    ),
    Option(
        ("--prefill-assistant",),
        "a chat that ends with an assistant's message is continued there",
        negative=("--no-prefill-assistant",),
    ),
    Option(
        ("--parse-special",),
        "texts like <|im_end|> in chat messages are control tokens, as in llama-server",
        negative=("--no-parse-special",),
    ),
)
