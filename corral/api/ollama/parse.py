"""Convert ollama's requests to canonical ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.api.ollama.option import parse_options
from corral.api.ollama.schema import AnswerFields, OllamaChatRequest, OllamaGenerateRequest
from corral.api.shared.effort import known_effort
from corral.core.errors import InvalidRequest
from corral.generate.error_field import renaming
from corral.schema.chat import ChatRequest
from corral.schema.completion import CompletionRequest, GenerationFields
from corral.schema.infill import InfillRequest
from corral.schema.parse import RequestT, parse_request


@dataclass(frozen=True, slots=True)
class ParsedOllama:
    """`names`: the client's names of canonical fields."""

    request: GenerationFields
    names: dict[str, str]


def parse_chat(body: OllamaChatRequest, n_ctx: int) -> ParsedOllama:
    messages = _messages(body.messages)
    images = [f"messages[{i}].images" for i in range(len(messages))]
    return _parse_chat(body, messages, body.tools, n_ctx, images)


def parse_generate(body: OllamaGenerateRequest, n_ctx: int) -> ParsedOllama:
    """Convert a prompt to a chat of one message, or to a completion if it is raw or has a suffix."""
    if body.suffix:
        return _parse(InfillRequest, body, n_ctx, input_prefix=body.prompt, input_suffix=body.suffix)
    if body.raw:
        if body.images:
            raise InvalidRequest("cannot be combined with 'raw'", field="images")
        return _parse(CompletionRequest, body, n_ctx, prompt=body.prompt, **_schema(body))
    system = [{"role": "system", "content": body.system}] if body.system else []
    user = {"role": "user", "content": body.prompt, "images": body.images}
    return _parse_chat(
        body, _messages([*system, user]), None, n_ctx, ["system", "images"][-len(system) - 1 :]
    )


def _parse_chat(
    body: AnswerFields, messages: list[Any], tools: Any, n_ctx: int, images: Sequence[str]
) -> ParsedOllama:
    """`images`: what the client calls the images of each message."""
    fields = {"messages": messages, "parallel_tool_calls": True, **_reasoning(body), **_format(body)}
    if tools is not None:
        fields["tools"] = tools
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    parsed = _parse(ChatRequest, body, n_ctx, **fields)
    return replace(parsed, names=parsed.names | _image_names(messages, images))


def _image_names(messages: list[Any], images: Sequence[str]) -> dict[str, str]:
    return {
        f"messages[{i}].content[{k}].image_url": f"{name}[{k}]"
        for i, (message, name) in enumerate(zip(messages, images, strict=False))
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for k in range(len(message["content"]))
    }


def _parse(model: type[RequestT], body: AnswerFields, n_ctx: int, **fields: Any) -> ParsedOllama:
    options, names, warnings = parse_options(body.options, n_ctx)
    names |= {"response_format": "format", "json_schema": "format"}
    with renaming(names):
        request = parse_request(model, {**options, **fields, "stream": body.stream, "model": body.model})
    own = [*request.warnings, *warnings]
    parsed = request.with_remarks_of(body, own)
    assert isinstance(parsed, GenerationFields)
    return ParsedOllama(parsed, names)


def _messages(messages: Any) -> list[Any]:
    if not isinstance(messages, list):
        raise InvalidRequest("must be a list", field="messages")
    calls = _Calls()
    return [_message(message, calls) if isinstance(message, dict) else message for message in messages]


def _message(message: dict[str, Any], calls: _Calls) -> dict[str, Any]:
    rest = {
        k: v for k, v in message.items() if k not in ("images", "thinking", "tool_name") and v is not None
    }
    rest["content"] = _content(message.get("content") or "", message.get("images"))
    if message.get("thinking"):
        rest["reasoning_content"] = message["thinking"]
    if isinstance(rest.get("tool_calls"), list):
        rest["tool_calls"] = [calls.number(call) for call in rest["tool_calls"]]
    if rest.get("role") == "tool":
        rest.setdefault("tool_call_id", calls.next_id())
        if message.get("tool_name"):
            rest["name"] = message["tool_name"]
    return rest


def _content(text: Any, images: Any) -> Any:
    """Return the content parts, images before the text."""
    if not images:
        return text
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise InvalidRequest("must be a list of texts in base64", field="images")
    parts = [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in images]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _data_uri(image: str) -> str:
    return image if image.startswith("data:") else f"data:image/*;base64,{image}"


def _format(body: AnswerFields) -> dict[str, Any]:
    if not body.format:
        return {}
    if body.format == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(body.format, str):
        raise InvalidRequest("must be 'json' or a JSON Schema", field="format")
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": body.format}}}


def _schema(body: AnswerFields) -> dict[str, Any]:
    """Return the requested format for a prompt without a template."""
    format = _format(body).get("response_format")
    if format is None:
        return {}
    return {"json_schema": format["json_schema"]["schema"] if "json_schema" in format else {"type": "object"}}


def _reasoning(body: AnswerFields) -> dict[str, Any]:
    if body.think is None:
        return {}
    if isinstance(body.think, bool):
        return {"chat_template_kwargs": {"enable_thinking": body.think}}
    effort = known_effort(body.think)
    return {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": effort}


class _Calls:
    """Mutable: gives calls ids, which this API lacks; results follow in the order of the calls."""

    def __init__(self) -> None:
        self._n_calls = 0
        self._n_results = 0

    def number(self, call: Any) -> Any:
        self._n_calls += 1
        return {"id": f"call_{self._n_calls}", **call} if isinstance(call, dict) else call

    def next_id(self) -> str:
        self._n_results += 1
        return f"call_{self._n_results}"
