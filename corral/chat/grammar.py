"""Building blocks of grammars for tool calls, in llguidance's Lark dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from corral.chat.tool import ToolUse

TokenOf = Callable[[str], int | None]

GAP = r"(/[ \n]{1,8}/)?"
END = -1  # stands for tokens that end a generation: no grammar needs to mention them


class Grammar:
    """Collects rules. `token_of` returns the control token of a text, which a grammar must reference as
    a token."""

    def __init__(self, token_of: TokenOf) -> None:
        self._token_of = token_of
        self._rules: list[str] = []

    def rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def build(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])

    def mark(self, *texts: str) -> str:
        """Match texts in a row, each of which may be a control token."""
        return seq(*(self._mark(text) for text in texts))

    def up_to(self, end: str) -> str:
        """Match any text up to and including the first `end`."""
        token = self._token_of(end)
        anything = "/(?s:.*)/"
        if token is not None:
            return seq(self.rule(anything), self._mark(end))
        return self.rule(anything, f"[suffix={_quote(end)}]")

    def _mark(self, text: str) -> str:
        token = self._token_of(text)
        if token == END:
            return ""
        return _quote(text) if token is None else f"<[{token}]>"


def literal(text: str) -> str:
    return _quote(text) if text else ""


def json_value(schema: Any) -> str:
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def seq(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def maybe(*parts: str) -> str:
    part = seq(*parts)
    return f"({part})?" if part else ""


def calls_of(use: ToolUse, opening: str, closing: str) -> str:
    """Match one call of any function: its arguments between two texts, in which `@` stands for the name."""
    return any_of(
        seq(literal(opening.replace("@", tool.name)), json_value(tool.parameters), literal(closing))
        for tool in use.tools
    )


def repeat(use: ToolUse, one: str, separator: str) -> str:
    """Match one item, or several if parallel calls are allowed."""
    return seq(one, f"({seq(separator, one)})*") if use.is_parallel else one


def any_of(options: Iterable[str]) -> str:
    return "(" + " | ".join(options) + ")"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
