"""Render what a chat template can express, with llama-server's names."""

from __future__ import annotations

from corral.chat.chat_format import ChatFormat

_EFFORT = "reasoning_effort"


def render_capability(chat: ChatFormat) -> dict[str, bool]:
    can, source = chat.can, chat.template.source
    return {
        "supports_string_content": not can.part_content,
        "supports_typed_content": can.reads_parts,
        "supports_tools": can.tools,
        "supports_tool_calls": can.tool_calls,
        "supports_parallel_tool_calls": can.parallel_calls,
        "supports_system_role": can.system,
        "supports_preserve_reasoning": chat.keeps_reasoning,
        "supports_reasoning_effort": _EFFORT in source,
        "supports_object_arguments": can.object_arguments,
    }
