"""Rewrite conversations to what a template can express, so that no content of the request is lost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from corral.chat.capability import Capability
from corral.chat.message import Message, arguments_of, text_of

Adaptation = Callable[[list[Message]], list[Message]]


def normalize_messages(
    messages: list[Message], tools: list[dict[str, Any]], can: Capability, instruction: str
) -> list[Message]:
    """Rewrite the messages for this template. `tools`: those that the template cannot render itself."""
    adapted = [_adapt_message(message, can) for message in messages]
    hints = [_describe(tools)] if tools else []
    hints += [instruction] if instruction else []
    if hints:
        adapted = _add_to_system(adapted, "\n\n".join(hints))
    return adapted if can.system else fold_system(adapted)


def relaxations(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield further attempts for a template that refuses; each is less like the original."""
    steps: tuple[Adaptation, ...] = (
        merge_systems,
        shorten_ids,
        fold_system,
        merge_turns,
        results_as_users,
        merge_turns,
    )
    for step in steps:
        messages = step(messages)
        yield messages


def in_parts(messages: list[Message]) -> list[Message]:
    """Convert contents to lists of parts, for templates that support nothing else."""
    return [{**m, "content": [{"type": "text", "text": m["content"] or ""}]} for m in messages]


def merge_systems(messages: list[Message]) -> list[Message]:
    systems = [m["content"] for m in messages if m["role"] == "system"]
    others = [m for m in messages if m["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(systems)}, *others] if systems else others


def fold_system(messages: list[Message]) -> list[Message]:
    """Move system messages into the user message that follows."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            waiting.append(message["content"])
            folded.append({**message, "content": "\n\n".join(text for text in waiting if text)})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": "\n\n".join(waiting)})
    return folded


def merge_turns(messages: list[Message]) -> list[Message]:
    """Merge messages so that user and assistant alternate, starting with the user."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None and message["role"] == "assistant":
            last = {"role": "user", "content": ""}
            merged.append(last)
        if last is not None and last["role"] == message["role"] and message["role"] in ("user", "assistant"):
            texts = [last["content"] or "", message["content"] or ""]
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            merged[-1] = {**last, "content": "\n\n".join(text for text in texts if text)}
            if calls:
                merged[-1]["tool_calls"] = calls
        else:
            merged.append(message)
    return merged


def shorten_ids(messages: list[Message]) -> list[Message]:
    """Shorten ids of calls to nine letters, as some templates require."""
    shortened = []
    for message in messages:
        message = dict(message)
        if "tool_calls" in message:
            message["tool_calls"] = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
        if message["role"] == "tool":
            message["tool_call_id"] = _short(str(message.get("tool_call_id", "")))
        shortened.append(message)
    return shortened


def results_as_users(messages: list[Message]) -> list[Message]:
    return [_result_as_user(m) if m["role"] == "tool" else _calls_as_text(m) for m in messages]


def _adapt_message(message: Message, can: Capability) -> Message:
    message = {**message, "content": text_of(message["content"])}
    if "tool_calls" in message:
        if not can.tool_calls:
            message = _calls_as_text(message)
        else:
            if can.object_arguments:
                message["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
            if can.null_content and not message["content"]:
                message["content"] = None
    if message["role"] == "tool" and not can.tool_results:
        message = _result_as_user(message)
    return message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments_of(call)}}


def _calls_as_text(message: Message) -> Message:
    """Write calls into the content, in the form of the generic format."""
    if "tool_calls" not in message:
        return message
    calls = [
        {"name": call["function"]["name"], "arguments": _plain_arguments(call)}
        for call in message["tool_calls"]
    ]
    text = json.dumps({"tool_calls": calls}, ensure_ascii=False)
    content = message["content"] or ""
    rest = {k: v for k, v in message.items() if k != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _plain_arguments(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, dict) else arguments_of(call)


def _result_as_user(message: Message) -> Message:
    response = {"tool": message.get("name", ""), "content": message["content"] or ""}
    return {"role": "user", "content": json.dumps({"tool_response": response}, ensure_ascii=False)}


def _add_to_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        content = first["content"]
        return [{**first, "content": f"{content}\n\n{text}" if content else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _describe(tools: list[dict[str, Any]]) -> str:
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return "You can call these functions:\n" + "\n".join(lines)


def _short(id: str) -> str:
    return id if len(id) == 9 and id.isalnum() else hashlib.sha256(id.encode()).hexdigest()[:9]
