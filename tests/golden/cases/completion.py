"""Answers to prompts: `/v1/completions`, `/completion` and `/infill`; tokens."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Case
from tests.golden.cases.dialect import SCHEMA, UNIQUE, Dialect, errors_of, features_of

_NO_CHAT = "a prompt is no chat"
_LACKS = dict.fromkeys(("reasoning", "one call", "several calls", "cut call"), _NO_CHAT)
_NATIVE: dict[str, dict[str, Any]] = {
    "text": {},
    "stop string": {"stop": ["two"]},
    "length": {"n_predict": 4},
    "logprobs": {"n_probs": 2},
    "error after the first token": {},
    "structured output": {"json_schema": SCHEMA},
    "redraw": {"json_schema": UNIQUE},
    "unmet schema": {"json_schema": UNIQUE},
    "three answers": {"n": 3},
}
COMPLETIONS = Dialect(
    "completions",
    "/v1/completions",
    {"model": "m", "prompt": "Hi"},
    {**_NATIVE, "length": {"max_tokens": 4}, "logprobs": {"logprobs": 2}},
    _LACKS,
)
COMPLETION = Dialect("completion", "/completion", {"model": "m", "prompt": "Hi"}, _NATIVE, _LACKS)
INFILL = Dialect(
    "infill", "/infill", {"model": "m", "input_prefix": "def f", "input_suffix": "end"}, _NATIVE, _LACKS
)
DIALECTS = (COMPLETIONS, COMPLETION, INFILL)
ask, stream = COMPLETIONS.ask, COMPLETIONS.stream
native = COMPLETION.ask


def _tokens(path: str, **fields: Any) -> Ask:
    return Ask("POST", path, {"model": "m", **fields})


CASES = [
    *(case for dialect in DIALECTS for case in (*features_of(dialect), *errors_of(dialect))),
    Case("usage at the end of a stream", (stream(stream_options={"include_usage": True}),)),
    Case("several prompts", (ask(prompt=["a", "b"]), stream(prompt=["a", "b"]), native(prompt=["a", "b"]))),
    Case("a prompt of tokens", (ask(prompt=[73, 106]), native(prompt=[73, "i"]))),
    Case("with the prompt", tuple(each(prompt="()", echo=True, logprobs=1) for each in (ask, stream))),
    Case("the best of two", (ask(best_of=2, n=1),)),
    Case("between", (ask(suffix="end"),)),
    Case("a prompt that is too long", (ask(prompt="x" * 9000), native(prompt="x" * 9000))),
    Case("a prompt that is missing", (ask(prompt=None), native(prompt={}))),
    Case("tokens in the answer", (native(return_tokens=True), COMPLETION.stream(return_tokens=True))),
    Case("timings of every token", (COMPLETION.stream(timings_per_token=True),)),
    Case("other paths", (Ask("POST", "/completions", COMPLETION.body),)),
    Case(
        "tokens",
        (
            _tokens("/tokenize", content="Hé"),
            _tokens("/tokenize", content="Hé", with_pieces=True),
            _tokens("/tokenize", prompt="Hé", return_token_strs=True),
            _tokens("/tokenize"),
            _tokens("/detokenize", tokens=[73, 234]),
            _tokens("/detokenize", tokens="x"),
            Ask("GET", "/tokenizer_info?model=m"),
            Ask("HEAD", "/tokenizer_info?model=m"),
            Ask("GET", "/tokenizer_info"),
        ),
    ),
]
