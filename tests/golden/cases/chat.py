"""`/v1/chat/completions` and its neighbours."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Begin, Case, Model
from tests.golden.cases.dialect import FEATURES, N_CUT, SCHEMA, UNIQUE, Dialect, errors_of, features_of

HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


AUDIO = ("/v1/audio/transcriptions", "/audio/transcriptions")
_FORM_TYPE = {"content-type": "multipart/form-data; boundary=x"}
_FORM = (
    b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--x--\r\n'
)


def _control(path: str = "/v1/chat/completions/control", **fields: Any) -> Ask:
    return Ask("POST", path, {"model": "m", **fields})


def _format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


CHAT = Dialect(
    "chat",
    "/v1/chat/completions",
    {"model": "m", "messages": HELLO},
    {
        "text": {},
        "reasoning": {},
        "one call": {"tools": TOOLS},
        "several calls": {"tools": TOOLS},
        "cut call": {"tools": TOOLS, "max_tokens": N_CUT},
        "stop string": {"stop": ["two"]},
        "length": {"max_tokens": 4},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "error after the first token": {},
        "structured output": _format(SCHEMA),
        "redraw": _format(UNIQUE),
        "unmet schema": _format(UNIQUE),
        "three answers": {"n": 3},
    },
)
DIALECTS = (CHAT,)
ask, stream = CHAT.ask, CHAT.stream
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
_THINKS = FEATURES["reasoning"]

CASES = [
    *features_of(CHAT),
    *errors_of(CHAT),
    Case("usage at the end of a stream", (stream(stream_options={"include_usage": True}),)),
    Case("a required call", (ask(tools=TOOLS, tool_choice="required"),), FEATURES["several calls"]),
    Case("reasoning in the text", (ask(reasoning_format="none"), stream(reasoning_format="none")), _THINKS),
    Case("a beginning of the answer", (ask(messages=[*HELLO, {"role": "assistant", "content": "Well, "}]),)),
    Case("the second time", (ask(), ask(cache_report=True), stream(cache_report=True))),
    Case("a field that is not known", (ask(unknown=1), stream(unknown=1))),
    Case("media without a projector", (ask(messages=[{"role": "user", "content": [_PICTURE]}]),)),
    Case("a prompt that is too long", (ask(messages=[{"role": "user", "content": "x" * 9000}]),)),
    Case("more answers than slots", (ask(n=3), stream(n=3)), Model("Hi.", n_slots=1)),
    Case("the native answer, too", (ask(verbose=True),)),
    Case("without the version in the path", (Ask("POST", "/chat/completions", CHAT.body),)),
    Case(
        "tokens of a chat",
        tuple(
            Ask("POST", f"{path}/input_tokens", CHAT.body)
            for path in ("/v1/chat/completions", "/chat/completions")
        ),
    ),
    Case(
        "template",
        (
            Ask("POST", "/apply-template", {**CHAT.body, "tools": TOOLS}),
            Ask("POST", "/apply-template", {"model": "m"}),
        ),
    ),
    Case(
        "stop a running answer",
        (
            Begin(stream({"x-request-id": "mine"}), steps=4),
            _control(id="mine", action="pause"),
            _control(id="mine", action="resume"),
            _control(id="mine", action="stop"),
            _control(id="other", action="stop"),
        ),
    ),
    Case(
        "limit a running answer",
        (
            Begin(ask({"x-request-id": "mine"}), steps=4),
            _control("/chat/completions/control", id="mine", action="limit", n_predict=4),
        ),
    ),
    Case(
        "end the reasoning of a running answer",
        (
            Begin(ask({"x-request-id": "mine"}), steps=10),
            _control("/completion/control", id="mine", action="reasoning_end"),
        ),
        _THINKS,
    ),
    Case("audio without a projector", tuple(Ask("POST", path, _FORM, _FORM_TYPE) for path in AUDIO)),
    Case("audio without a file", tuple(Ask("POST", path, {"model": "m"}) for path in AUDIO)),
]
