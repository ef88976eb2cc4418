"""What the server keeps: chats, files and batches, resumable streams, durable requests."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Begin, Case, Model

_ID = "0123456789abcdef" * 2
_CHATS = {"chats_path": "$dir"}
_BATCHES = {"batches_path": "$dir"}
_SEALED = ("one sealed", "many sealed")
_MESSAGE = {"id": "1", "parent": None, "role": "user", "content": "Hi", "createdAt": 1000}
_CHAT = {
    "title": "Tea",
    "messages": {"1": _MESSAGE},
    "leaf": "1",
    "system": "",
    "settings": {},
    "createdAt": 1000,
    "updatedAt": 2000,
}


def _chat(method: str, body: Any = None, **options: Any) -> Ask:
    return Ask(method, f"/chats/{_ID}", body, **options)


def _upload(**bodies: bytes) -> Ask:
    """A file with requests, by their ids."""
    line = b'{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": %s}\n'
    form = (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    content = b"".join(line % (id.encode(), body) for id, body in bodies.items())
    headers = {"content-type": "multipart/form-data; boundary=x"}
    return Ask("POST", "/v1/files", form + content + b"\r\n--x--\r\n", headers, keeps={"file": "id"})


_GOOD = b'{"model": "m", "prompt": "Hi"}'
_UPLOAD = _upload(a=_GOOD, b=b'{"model": "m", "prompt": "Hi", "temperature": "hot"}')
_BATCH = Ask(
    "POST",
    "/v1/batches",
    {"input_file_id": "$file", "endpoint": "/v1/completions", "completion_window": "24h"},
    keeps={"id": "id"},
    is_long=True,  # a moment later it is in progress
)
_PARAMS = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
_MESSAGES = Ask(
    "POST",
    "/v1/messages/batches",
    {
        "requests": [
            {"custom_id": "a", "params": _PARAMS},
            {"custom_id": "b", "params": {**_PARAMS, "temperature": "hot"}},
        ]
    },
    keeps={"id": "id"},
)
_TEA = {"x-conversation-id": "tea"}
_PROMPT = {"model": "m", "prompt": "Hi"}
_STREAM = Ask("POST", "/completion", {**_PROMPT, "stream": True}, _TEA)
_LOOKUP = Ask("POST", "/v1/streams/lookup", {"conversation_ids": ["tea", "coffee"]})
_DURABLE: dict[str, Any] = {"journal": "$dir"}


def _batches(method: str, path: str, **options: Any) -> Ask:
    return Ask(method, f"/v1/batches{path}", **options)


def _message_batches(method: str, path: str, **options: Any) -> Ask:
    return Ask(method, f"/v1/messages/batches{path}", **options)


CASES = [
    Case(
        "chats",
        (
            Ask("GET", "/chats"),
            _chat("GET"),
            _chat("PUT", _CHAT),
            _chat("PUT", _CHAT, headers={"if-none-match": "*"}),
            _chat("PUT", {**_CHAT, "title": 5}),
            _chat("GET"),
            _chat("HEAD"),
            Ask("GET", "/chats"),
            Ask("HEAD", "/chats"),
            Ask("GET", "/chats/../x"),
            _chat("POST", _CHAT),
            _chat("DELETE"),
            _chat("DELETE"),
        ),
        options=_CHATS,
    ),
    Case(
        "chats of another key",
        (
            _chat("PUT", _CHAT, key="user"),
            _chat("GET"),
            Ask("GET", "/chats"),
            _chat("GET", key=""),
            _chat("GET", key="read-only"),
        ),
        options=_CHATS,
        setups=_SEALED,
    ),
    Case("no chats", (Ask("GET", "/chats"), _chat("GET"), _chat("PUT", _CHAT), _chat("DELETE"))),
    Case(
        "files",
        (
            _UPLOAD,
            Ask("GET", "/v1/files"),
            Ask("GET", "/v1/files/$file"),
            Ask("HEAD", "/v1/files/$file"),
            Ask("GET", "/v1/files/$file/content"),
            Ask("DELETE", "/v1/files/$file"),
            Ask("GET", "/v1/files/$file"),
            Ask("DELETE", "/v1/files/$file"),
            Ask("GET", "/v1/files/$file/content"),
            Ask("POST", "/v1/files", {}),
        ),
        options=_BATCHES,
    ),
    Case(
        "a batch",
        (
            _UPLOAD,
            _BATCH,
            _batches(
                "GET",
                "/$id",
                until='"status":"completed"',
                keeps={"out": "output_file_id", "wrong": "error_file_id"},
            ),
            Ask("GET", "/v1/files/$out/content"),
            Ask("GET", "/v1/files/$wrong/content"),
            _batches("GET", ""),
            _batches("POST", "/$id/cancel"),
            _batches("GET", "/batch_0"),
            Ask("POST", "/v1/batches", {"input_file_id": "none", "endpoint": "/v1/completions"}),
            Ask("POST", "/v1/batches", {"input_file_id": "$file", "endpoint": "/v1/none"}),
        ),
        options=_BATCHES,
    ),
    Case(
        "a cancelled batch",
        (
            Begin(Ask("POST", "/completion", _PROMPT), steps=2),
            _upload(a=_GOOD),
            _BATCH,
            _batches("GET", "/$id", until='"status":"in_progress"', is_long=True),
            _batches("POST", "/$id/cancel", is_long=True),
            _batches("GET", "/$id", until='"status":"cancelled"'),
        ),
        Model(n_slots=1),
        _BATCHES,
    ),
    Case(
        "a batch of messages",
        (
            _MESSAGES,
            _message_batches("GET", "/$id", until='"ended"'),
            _message_batches("GET", "/$id/results"),
            _message_batches("GET", ""),
            _message_batches("POST", "/$id/cancel"),
            _message_batches("DELETE", "/$id"),
            _message_batches("GET", "/$id"),
            _message_batches("GET", "/$id/results"),
        ),
        options=_BATCHES,
    ),
    Case(
        "batches of another key",
        (
            _UPLOAD,
            Ask("GET", "/v1/files/$file", key="user"),
            Ask("GET", "/v1/files", key="user"),
            Ask("GET", "/v1/batches", key=""),
            Ask("GET", "/v1/messages/batches", key="read-only"),
        ),
        options=_BATCHES,
        setups=_SEALED,
    ),
    Case("no batches", (_UPLOAD, Ask("GET", "/v1/batches"), Ask("GET", "/v1/messages/batches"))[1:]),
    Case(
        "a stream that can be read again",
        (
            _STREAM,
            _LOOKUP,
            Ask("GET", "/v1/stream?conv_id=tea&from=0"),
            Ask("GET", "/v1/stream?conv_id=tea&from=3"),
            Ask("GET", "/v1/stream?conv_id=tea&ids=true"),
            Ask("GET", "/v1/stream?conv_id=tea", headers={"last-event-id": "1"}),
            Ask("GET", "/v1/stream?conv_id=tea&from=999999"),
            Ask("GET", "/v1/stream?conv_id=coffee"),
            Ask("HEAD", "/v1/stream?conv_id=coffee"),
            Ask("GET", "/v1/stream"),
            Ask("DELETE", "/v1/stream?conv_id=tea"),
            Ask("DELETE", "/v1/stream"),
            _LOOKUP,
        ),
    ),
    Case(
        "a stream that is stopped",
        (Begin(_STREAM, steps=3), Ask("DELETE", "/v1/stream?conv_id=tea"), _LOOKUP),
    ),
    Case(
        "a stream of another key",
        (
            _STREAM,
            Ask("GET", "/v1/stream?conv_id=tea", key="user"),
            Ask("POST", "/v1/streams/lookup", {"conversation_ids": ["tea"]}, key="user"),
        ),
        setups=_SEALED,
    ),
    Case(
        "a durable stream",
        (
            Ask("POST", "/completion", {**_PROMPT, "stream": True, "durable": True}),
            Ask("POST", "/v1/chat/completions", {**_PARAMS, "stream": True, "durable": True}),
            Ask("POST", "/v1/messages", {**_PARAMS, "stream": True, "durable": True}),
            Ask("POST", "/completion", {**_PROMPT, "durable": True}),
        ),
        options=_DURABLE,
    ),
    Case(
        "durable without a journal",
        (Ask("POST", "/completion", {**_PROMPT, "stream": True, "durable": True}),),
    ),
]
