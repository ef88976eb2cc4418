"""The groups of operations in `/openapi.json` and on `/docs`, in their order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    about: str


CHAT = Group("Chat and completions", "Generate text, in OpenAI's and in llama-server's own format.")
STREAMS = Group("Resumable streams", "Streams that continue without their client (`X-Conversation-Id`).")
RESPONSES = Group("OpenAI's Responses API", "The same conversations, which the server can keep.")
MESSAGES = Group("Anthropic's API", "The same conversations, for clients of the Messages API.")
BATCHES = Group("Files and batches", "Many requests at once, which run when nothing else does (`--batches`).")
OLLAMA = Group("Ollama's API", "The same model, for clients of ollama.")
EMBEDDINGS = Group("Embeddings and reranking", "Vectors, scores and labels of texts.")
TOKENS = Group("Tokens", "Convert text to tokens and back.")
SLOTS = Group("Slots and sessions", "Inspect, save, restore and edit what slots hold (`--slots`).")
ADAPTERS = Group("LoRA adapters", "List, weight, load and unload adapters.")
TOOLS = Group("Tools", "Tools of MCP servers that the server runs (`--mcp-servers-config`).")
CHATS = Group("Saved chats", "Conversations of the page that the server keeps (`--chats`).")
SERVER = Group("Server and monitoring", "The model, the server's settings, its health and what it is doing.")
ALIASES = Group("Aliases", "Other paths of the operations above.")

GROUPS = (
    *(CHAT, STREAMS, RESPONSES, MESSAGES, BATCHES, OLLAMA, EMBEDDINGS),
    *(TOKENS, SLOTS, ADAPTERS, TOOLS, CHATS, SERVER, ALIASES),
)
