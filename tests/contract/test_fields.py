"""Every place of every request gets what does not belong there: the answer says so, the next one is right.

The places come from `/openapi.json`, so that a new field is swept as soon as it is there.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from itertools import groupby
from typing import Any

import httpx
import pytest

from corral.api.responses.conversation import Conversation
from corral.cli.configuration import configure
from corral.core.client import ANONYMOUS
from corral.core.fim import FimTokens
from corral.core.pooling import Pooling
from tests.contract.field_cases import (
    CHAT,
    CONVERSATION,
    HIDDEN,
    PLAIN,
    SHORT,
    VALUES,
    all_places,
    model_of,
    names_field,
    template_of,
    unmeant,
)
from tests.contract.fim import MID, PRE, SUF
from tests.contract.inline import Server
from tests.tools.examples import is_quick
from tests.tools.field_walk import LIMITS, NUMBERS, Place, places
from tests.unit.fake import FakeBackend, FakeEncoder

FEW = [-1, math.nan, "1", None, [], {}]
HALVES = [-1, None, {}], ["1", []]  # JSON without NaN: with it, fields are not even looked at
del CHAT["prompt"]
# Other paths of the same handler: what they do with numbers is swept with the first one.
ALIASES = (
    "/completions",
    "/chat/completions",
    "/chat/completions/input_tokens",
    "/embeddings",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/v1/classify",
    "/responses",
    "/responses/input_tokens",
)
# They read the fields of a whole chat, and use few of them.
ONLY_RENDER = (
    *("/apply-template", "/v1/chat/completions/input_tokens", "/v1/messages/count_tokens"),
    *("/v1/responses/input_tokens", "/responses/input_tokens"),
)
SWEPT = [path for path in PLAIN if path not in ALIASES]
# Not swept, since they need options or forms instead of JSON; test_batches, test_streams,
# test_many_models, test_model_downloads and test_transcription have some invalid requests for them,
# schemathesis more.
OWN_TESTS = {
    *("/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/streams/lookup"),
    *("/v1/audio/transcriptions", "/audio/transcriptions"),
    *("/models", "/models/load", "/models/unload", "/tools", "/engines/update"),
}
NOTHING_IS_DONE = (
    *("metadata", "store", "service_tier", "safety_identifier"),
    *("options", "prompt_cache_options", "prompt_cache_retention"),
    # of llama-server, where they belong to other routes or to its own parts
    *("speculative.ngram_size_n", "speculative.ngram_size_m", "speculative.ngram_min_hits"),
    *("reasoning_format", "continue_final_message", "stream_options", "verbose", "thinking_forced_open"),
    *("reasoning_in_content", "chat_format", "chat_parser", "parse_tool_calls", "grammar_type"),
    "backend_sampling",
    *("guided_decoding_backend", "guided_whitespace_pattern", "structural_tag"),  # a hint, or refused
    *("include[]", "chunking_strategy"),  # of a transcription
    "cache_control",  # that it is there counts
)
# Texts and lists without a limit of their own, which `--max-body-mb` bounds, and why that is enough.
CONTEXT = "longer than the context, it is refused before it is tokenized"
BOUNDED: dict[str, Any] = {
    "prompt": CONTEXT,
    "messages": CONTEXT,
    "tools": CONTEXT,
    "functions": CONTEXT,
    "cfg_negative_prompt": CONTEXT,
    "penalty_prompt": CONTEXT,
    "system_prompt": CONTEXT,
    "input": CONTEXT,
    "params": "they go to the tool as they are; the limit is that of bodies",
    "content": CONTEXT + "; /tokenize takes texts of any length, in a thread of their own",
    "inputs": CONTEXT,
    "query": CONTEXT,
    "system": CONTEXT,
    "instructions": CONTEXT,
    "items": "a document of the store has a limit in bytes",
    "text": "schemas have limits in bytes, depth and rules",
    "reasoning": "two of its fields count",
    "conversation": "its id counts",
    "suffix": CONTEXT,
    "format": "schemas have limits in bytes, depth and rules",
    "guided_json": "schemas have limits in bytes, depth and rules",
    "output_config": "schemas have limits in bytes, depth and rules",
    "output_format": "schemas have limits in bytes, depth and rules",
    "thinking": "three of its fields count",
    "images": "as long as media may be",
    "input_prefix": "what does not fit is cut off before it is tokenized",
    "input_suffix": "what does not fit is cut off before it is tokenized",
    "input_extra": "what does not fit is cut off before it is tokenized",
    "json_schema": "schemas have limits in bytes, depth and rules",
    "response_format": "schemas have limits in bytes, depth and rules",
    "tool_choice": "compared with names, and nothing else",
    "stream_options": "one flag counts",
    "prompt_cache_options": "nothing is done with it",
    "lora": "an item's number and scale count",
    "output_expires_after": "two of its fields count",
    "file": "as long as media may be",
    "requests": "as many as a batch may have; each is checked when it runs",
    "grammar_triggers": "a type, a text with a limit and a number count",
    "state": "as long as the longest state of the model",
}


def make_server(path: str, folder) -> Server:
    ranks = "rank" in path or "classify" in path
    encoder = FakeEncoder(Pooling.RANK, labels=("good", "bad")) if ranks else None
    backend = FakeBackend(encoder=encoder)
    backend.vocab.fim = FimTokens(PRE, SUF, MID)
    server = Server(backend, slots=True, slot_save_path=str(folder), lora_dir=str(folder))
    server.services.responses.keep_conversation(ANONYMOUS, Conversation({}, CONVERSATION))
    return server


@cache
def description() -> dict:
    return Server().services.openapi()


async def ask(server: Server, path: str, body: dict) -> tuple[int, Any]:
    # Cookies and redirections of a client would take a third of the time.
    request = httpx.Request("POST", f"http://corral{path}", content=json.dumps(body))
    response = await server.transport.handle_async_request(request)
    answer = json.loads((await response.aread()).strip().rpartition(b"\n")[2])  # ollama's are lines of JSON
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):  # ollama's errors are texts
        answer["error"] = {"message": answer["error"], "type": ""}
    return response.status_code, answer


def timeless(answer: object) -> str:
    """What two answers to the same request have in common."""
    text = re.sub(
        r'"(\w*(timings|created|_ms|ms|per_second|_duration|_at))": ([\d.e+-]+|\{[^}]*\}|"[^"]*")',
        "",
        json.dumps(answer),
    )
    ids = r"id|id_slot|first_id|last_id"
    counts = r"tokens_cached|cached_tokens|cache_write_tokens|n_past|\w*input_tokens"
    return re.sub(rf'"({ids}|{counts})": ("\w*"|"\w*-\w*"|-?\d+)', "", text)


def values_of(path: str, place: Place) -> list[Any]:
    """What is tried in a place. The fields of a completion are those of ten routes: to be quick, each has one
    half of the values, and the next one the other half."""
    if is_quick() and place.field in fields_of_completion():
        return HALVES[(SWEPT.index(path) + len(place.name)) % 2]
    is_number = place.kind in (*NUMBERS, "any")
    return VALUES if is_number and path not in ONLY_RENDER and not is_quick() else FEW


@cache
def fields_of_completion() -> set[str]:
    return {place.field for place in all_places("/completion", description())}


@pytest.mark.parametrize("path", SWEPT)
async def test_every_place_takes_only_what_belongs_there(path, tmp_path):
    server, schema = make_server(path, tmp_path), description()
    documented = {int(status) for status in schema["paths"][template_of(path)]["post"]["responses"]}
    plain = PLAIN[path]
    before = await ask(server, path, plain)
    wrong = []
    for field, group in groupby(all_places(path, schema), lambda place: place.field):
        cases = [(place, value, place.fill(value)) for place in group for value in values_of(path, place)]
        # A place with several types is there for each of them.
        for place, value, sent in {
            json.dumps(sent): (place, value, sent) for place, value, sent in cases
        }.values():
            status, answer = await ask(server, path, {**plain, **sent})
            is_right = status in documented - unmeant(place)
            is_same = (status, answer) == before  # as if the field was not there
            is_named = status != 400 or is_same or names_field(answer["error"], field, value)
            if not (is_right and is_named):
                wrong.append(f"{place.name} = {value!r}: {status} {str(answer)[:300]}")
        if field == "system_prompt":  # applies to later requests, too
            await ask(server, "/completion", {"system_prompt": ""})
        after = await ask(server, path, plain)
        if (after[0], timeless(after[1])) != (before[0], timeless(before[1])):
            wrong.append(f"after {field}: {str(after)[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [path for path in SWEPT if path not in ONLY_RENDER])
async def test_nothing_is_longer_than_it_may_be(path, tmp_path):
    server, schema = make_server(path, tmp_path), description()
    for place in places(model_of(path, schema), schema["components"]["schemas"]):
        if place.kind not in LIMITS or not place.limit:
            continue
        status, answer = await ask(server, path, {**PLAIN[path], **place.fill(too_long(place))})
        assert status in (400, 413), (place.name, str(answer)[:300])
        assert names_field(answer["error"], place.field, None), (place.name, answer)


def too_long(place: Place) -> object:
    n = place.limit + 1
    if place.kind == "string":
        return "a" * n
    if place.kind == "object":
        return {str(i): 1 for i in range(n)}
    items = place.schema.get("items", {})
    return [{"string": "a", "array": [1, 1]}.get(items.get("type"), 1)] * n


def test_everything_has_a_limit():
    schema = description()
    components = schema["components"]["schemas"]
    models = {name: model for name, model in components.items() if name.endswith("Request")}
    assert len(models) >= 15
    used = set()
    for name, model in models.items():
        for place in places(model, components):
            if place.kind in LIMITS and place.limit is None:
                assert place.field in BOUNDED, f"{name}.{place.name} has no maximum, nor a reason in BOUNDED"
                used.add(place.field)
            if place.kind in NUMBERS:
                assert "properties" not in place.schema
            if place.kind == "any":
                known = place.field in HIDDEN or place.field in NOTHING_IS_DONE
                assert known, f"{name}.{place.name}: say in HIDDEN what may be in it"
    assert used == set(BOUNDED), "BOUNDED tells of fields that need no reason"


def test_every_route_with_a_body_is_swept():
    paths = description()["paths"]
    with_body = {path for path, operations in paths.items() if "requestBody" in operations.get("post", {})}
    # The body of the first is a list (tests/contract/test_adapters.py), that of the second has no fields.
    assert {template_of(path) for path in PLAIN} == with_body - {"/lora-adapters", "/props"} - OWN_TESTS


async def test_what_is_ignored_is_told_briefly(tmp_path):
    server = make_server("/completion", tmp_path)
    unknown = {"x" * 1000 + str(i): i for i in range(900)}
    _, answer = await ask(server, "/completion", {**SHORT, "max_tokens": 5, **unknown})
    first, *others, last = answer["warnings"]
    assert first == "Field 'max_tokens' was ignored: it is an alias of 'n_predict', which is set too"
    assert set(others) == {f"Field '{'x' * 64}' is unknown and was ignored"}
    assert last == "869 more fields were ignored"


@pytest.mark.parametrize(
    ("sent", "ignored", "used"),
    [
        ({"max_completion_tokens": 3, "max_tokens": 2}, "max_tokens", "max_completion_tokens"),
        ({"n_predict": 3, "max_completion_tokens": 2}, "max_completion_tokens", "n_predict"),
        (
            {"n_predict": None, "max_completion_tokens": 3, "max_tokens": 2},
            "max_tokens",
            "max_completion_tokens",
        ),
        ({"n_cmpl": 1, "n": 2}, "n", "n_cmpl"),
        ({"n_probs": 1, "logprobs": 2}, "logprobs", "n_probs"),
        ({"speculative.n_max": 1, "speculative_n_max": 2}, "speculative_n_max", "speculative.n_max"),
    ],
)
async def test_of_two_names_the_one_that_counts_is_told(sent, ignored, used, tmp_path):
    server = make_server("/completion", tmp_path)
    _, answer = await ask(server, "/completion", {"prompt": "a", **sent})
    (warning,) = [text for text in answer["warnings"] if f"'{ignored}'" in text]
    assert warning.endswith(f"'{used}', which is set too")


@pytest.mark.parametrize("name", ["n_predict", "max_completion_tokens", "max_tokens"])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions", "/infill"])
async def test_a_capped_number_has_the_name_that_was_sent(name, path):
    backend = FakeBackend()
    backend.vocab.fim = FimTokens(PRE, SUF, MID)
    server = Server(backend, settings=configure(["-m", "fake.gguf", "--max-predict", "4"], {}).settings)
    plain = {key: value for key, value in PLAIN[path].items() if key != "n_predict"}
    _, answer = await ask(server, path, {**plain, name: 100})
    (warning,) = answer["warnings"]
    assert f"Field '{name}'" in warning


@pytest.mark.parametrize(
    ("path", "sent", "param"),
    [
        ("/completion", {"logprobs": 2**20, "max_tokens": 9}, "logprobs"),
        ("/v1/completions", {"logprobs": 2**20, "max_tokens": 9}, "logprobs"),
        (
            "/v1/chat/completions",
            {"logprobs": True, "top_logprobs": 1024, "max_tokens": 2000},
            "top_logprobs",
        ),
        ("/v1/chat/completions", {"logprobs": True, "max_tokens": 2**20}, "logprobs"),
        ("/completion", {"prompt": ["a"] * 100, "n": 100, "max_tokens": 9}, "n"),
        ("/completion", {"prompt": ["a"] * 100, "n_cmpl": 100, "max_tokens": 9}, "n_cmpl"),
        ("/v1/chat/completions", {"functions": [{"name": "a b"}]}, "functions[0].name"),
        ("/v1/chat/completions", {"functions": [5]}, "functions[0]"),
        (
            "/v1/chat/completions",
            {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
            "function_call",
        ),
        (
            "/v1/chat/completions",
            {
                "functions": [{"name": "f", "parameters": {"minimum": 2**60}}],
                "function_call": {"name": "f"},
            },
            "functions[0].parameters",
        ),
    ],
)
async def test_errors_have_the_name_that_was_sent(path, sent, param, tmp_path):
    server = make_server(path, tmp_path)
    plain = {key: value for key, value in PLAIN[path].items() if key != "n_predict"}
    status, answer = await ask(server, path, {**plain, **sent})
    assert (status, answer["error"]["param"]) == (400, param)
    assert "n_predict" not in answer["error"]["message"]


@pytest.mark.parametrize("field", ["prompt", "cfg_negative_prompt", "penalty_prompt", "system_prompt"])
@pytest.mark.parametrize("long", ["a" * 100_000, [1] * 100_000], ids=["text", "tokens"])
async def test_what_the_context_bounds_is_refused(field, long, tmp_path):
    server = make_server("/completion", tmp_path)
    status, answer = await ask(server, "/completion", {**SHORT, "cfg_scale": 2, field: long})
    assert status == 400, answer
