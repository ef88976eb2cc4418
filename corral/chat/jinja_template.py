"""The model's own Jinja, in a sandbox that sees only plain data."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corral.chat.template import TemplateError, TemplateLimit
from corral.core.errors import CorralError

MAX_CHARS = 32 << 20
_LIST_WORK = ("append", "extend", "pop")


class ChatTemplate:
    """A compiled template. Rendering is thread-safe."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise CorralError(f"the chat template is not valid jinja{line}: {error.message}") from None
        except RecursionError:
            raise CorralError("the chat template is nested too deeply") from None
        except (SyntaxError, ValueError, OverflowError) as error:  # of the Python that jinja makes of it
            raise CorralError(f"the chat template cannot be compiled: {error}"[:500]) from None

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the prompt of a conversation. Raises TemplateError if the template refuses it."""
        today = datetime.datetime.now()
        names = {
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
            **(options or {}),
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            names["tools"] = tools
        parts: list[str] = []
        n_chars = 0
        try:
            for part in self._template.generate(names):
                parts.append(part)
                n_chars += len(part)
                if n_chars > MAX_CHARS:
                    raise _too_long()
        except TemplateError:
            raise
        except MemoryError:
            raise TemplateLimit("the chat template needs too much memory for this conversation") from None
        except Exception as error:  # a template is a program that may fail in any way
            raise TemplateError(f"the chat template rejected these messages: {error}"[:500]) from None
        return "".join(parts)


class _Generation(Extension):
    """Supports `{% generation %}...{% endgeneration %}`, which renders as its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Generator(CodeGenerator):
    """Folds no constants: compiling is not limited, rendering is."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits: Jinja bounds `range`; powers are refused and repeated sequences
    bounded here."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Templates build lists; the data they can change belongs to this request only.
        is_list_work = isinstance(obj, list) and attr in _LIST_WORK
        return is_list_work or super().is_safe_attribute(obj, attr, value)

    code_generator_class = _Generator
    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        if operator == "**":
            raise TemplateError("the chat template uses the power operator, which is not allowed")
        for text, n in ((left, right), (right, left)):
            if isinstance(text, str | list | tuple) and isinstance(n, int) and len(text) * n > MAX_CHARS:
                raise _too_long()
        return left * right


def _too_long() -> TemplateLimit:
    return TemplateLimit("the chat template's output is too long")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the chat template rejected these messages: {message}"[:500])


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Dump JSON without Jinja's HTML escapes, since the reader is a model."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list,  # filters such as `map` return generators
    )


def _environment() -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        optimized=False,
        extensions=[loopcontrols, _Generation],
    )
    filters: dict[str, Callable[..., Any]] = {"tojson": _to_json, "fromjson": json.loads}
    environment.filters.update(filters)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


_ENVIRONMENT = _environment()
