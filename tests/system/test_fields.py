"""Numbers that libllama could choke on, through the real command: all of `/completion`, with all values
and its own limits, those of other routes with a few. The engine lives on, and answers as before.

tests/contract/test_fields.py does the same for all places and values, without native code.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.contract.field_cases import PLAIN, VALUES, all_places, names_field, template_of, unmeant
from tests.system.process import START_S, CorralProcess
from tests.tools.field_walk import NUMBERS, Place

LONG = {"n_predict": 300}  # more than the context of a slot: it shifts
# What a field needs beside it, to be more than read.
COMPANIONS: dict[str, Any] = {
    "n_keep": LONG,
    "n_discard": LONG,
    "mirostat_tau": {"mirostat": 1},
    "mirostat_eta": {"mirostat": 2},
    "dry_base": {"dry_multiplier": 1},
    "dry_allowed_length": {"dry_multiplier": 1},
    "dry_penalty_last_n": {"dry_multiplier": 1},
    "dynatemp_exponent": {"dynatemp_range": 0.5},
    "xtc_threshold": {"xtc_probability": 1},
    "xtc_probability": {"xtc_threshold": 0.01},
    "repeat_last_n": {"repeat_penalty": 1.5, "presence_penalty": 1},
    "min_keep": {"top_p": 0, "typical_p": 0, "tfs_z": 0},
    "n_probs": {"post_sampling_probs": True},
    "cfg_negative_prompt[]": {"cfg_scale": 2},
    "cfg_scale": {"cfg_negative_prompt": "bad"},
    "n_cache_reuse": {"prompt": "hello hello hello"},
}
ENDLESS = ("n_predict", "max_tokens", "max_completion_tokens")  # so many tokens would take days
OTHERS = ["/infill", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/slots/0?action=context-shift"]


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    saves = tmp_path_factory.mktemp("saves")
    options = [
        "-c",
        512,
        "-np",
        2,
        "--max-predict",
        4,
        "--context-shift",
        "--slots",
        "--slot-save-path",
        saves,
    ]
    with CorralProcess("-m", models / "llama-fim.gguf", *options) as server:
        engine = server.engine.pid
        yield server
        assert server.engine.pid == engine, "".join(server.lines[-50:])
        assert "Traceback" not in "".join(server.lines)


@pytest.fixture(scope="module")
def schema(server):
    return server.get("/openapi.json").json()


def sweep(server: CorralProcess, schema: dict, path: str, few: bool) -> int:
    """How many requests were answered, each of them with what it may be answered with."""
    documented = {int(status) for status in schema["paths"][template_of(path)]["post"]["responses"]}
    n, wrong = 0, []
    plain: dict[str, Any] = {**PLAIN[path], "temperature": 0}
    with httpx.Client(base_url=server.url, timeout=START_S) as http:
        before = answer_to(http)
        for place in [place for place in all_places(path, schema) if place.kind in NUMBERS]:
            for value in values_of(place, few):
                body = {**plain, "temperature": 1, **COMPANIONS.get(place.name, {}), **place.fill(value)}
                response = http.post(path, content=json.dumps(body))
                n += 1
                is_right = response.status_code in documented - unmeant(place)
                if response.status_code == 400:
                    is_right = names_field(response.json()["error"], place.field, value)
                if not is_right:
                    wrong.append(f"{place.name} = {value!r}: {response.text[:300]}")
            if answer_to(http) != before:
                wrong.append(f"after {place.name} another answer")
    assert not wrong, "\n".join(wrong)
    return n


def values_of(place: Place, few: bool) -> list[object]:
    names = ("minimum",) if place.field in ENDLESS else ("minimum", "maximum")
    limits = [place.schema[name] for name in names if name in place.schema]
    return [-(2**63), 1e308, *limits] if few else [*VALUES, 0.5, 1, *limits]


def answer_to(http: httpx.Client) -> str:
    body = {"prompt": "hello", "n_predict": 4, "temperature": 0, "seed": 1}
    return http.post("/completion", json=body).json()["content"]


def test_every_number_of_a_completion(server, schema):
    assert sweep(server, schema, "/completion", few=False) > 700


@pytest.mark.parametrize("path", OTHERS)
def test_numbers_of_other_routes(server, schema, path):
    assert sweep(server, schema, path, few=True)


def test_companions_are_of_places(schema):
    names = {place.name for place in all_places("/completion", schema)}
    assert COMPANIONS.keys() <= names
