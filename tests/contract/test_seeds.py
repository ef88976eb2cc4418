"""Answers have every field that any of the documents we follow shows, older ones next to newer ones.

000, 002 and 004 are llama-server's READMEs by age; where they contradict each other, the newer one counts.
"""

from __future__ import annotations

import pytest

from tests.contract.inline import Server, post
from tests.contract.wire import events_of


def names(*lines: str) -> set[str]:
    return {name for line in lines for name in line.split()}


OLDER_SETTINGS = names(
    "dynatemp_exponent dynatemp_range frequency_penalty grammar ignore_eos logit_bias min_p mirostat",
    "mirostat_eta mirostat_tau model n_ctx n_keep n_predict n_probs penalize_nl penalty_prompt_tokens",
    "presence_penalty repeat_last_n repeat_penalty samplers seed stop stream temperature tfs_z top_k top_p",
    "typical_p use_penalty_prompt_tokens",
)
NEWER_SETTINGS = names(
    "n_predict seed temperature dynatemp_range dynatemp_exponent top_k top_p min_p xtc_probability",
    "xtc_threshold typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty dry_multiplier",
    "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat mirostat_tau mirostat_eta",
    "stop max_tokens n_keep n_discard ignore_eos stream n_probs min_keep grammar samplers speculative.n_max",
    "speculative.n_min speculative.p_min timings_per_token",
)
SLOT = {
    "000, 002": OLDER_SETTINGS | {"id", "next_token", "prompt", "state", "task_id"},
    "004": {"id", "id_task", "n_ctx", "speculative", "is_processing", "params", "prompt", "next_token"},
}
NEXT_TOKEN = {
    "000, 002": names(
        "has_next_token n_remain n_decoded stopped_eos stopped_limit stopped_word stopping_word",
    ),
    "004": {"has_next_token", "has_new_line", "n_remain", "n_decoded", "stopping_word"},
}
COMPLETION = {
    "000, 002": names(
        "completion_probabilities content stop generation_settings model prompt stopped_eos stopped_limit",
        "stopped_word stopping_word timings tokens_cached tokens_evaluated truncated",
    ),
    "004": names(
        "completion_probabilities content tokens stop generation_settings model prompt stop_type",
        "stopping_word timings tokens_cached tokens_evaluated truncated",
    ),
}
PROBABILITY = {
    "000, 002": {"content", "probs"},
    "004": {"id", "logprob", "token", "bytes", "top_logprobs"},
}
PROPS = {
    "000, 002": {
        *("assistant_name", "user_name", "default_generation_settings", "total_slots", "chat_template")
    },
    "004": {*("default_generation_settings", "total_slots", "model_path", "chat_template", "build_info")},
}
ASKED = {"prompt": "hello", "n_predict": 3, "n_probs": 2, "seed": 1, "ignore_eos": True}


@pytest.fixture
async def server():
    server = Server(slots=True)
    await post(server, "/completion", json=ASKED)
    return server


async def test_slots(server):
    slots = (await server.http.get("/slots")).json()
    assert {slot["id_task"] for slot in slots} == {0, -1}, "also one that has served no request"
    for slot in slots:
        for fields in SLOT.values():
            assert fields - set(slot) == set()
        for fields in NEXT_TOKEN.values():
            assert fields - set(slot["next_token"]) == set()
        assert NEWER_SETTINGS - set(slot["params"]) == set()
        assert {name: slot[name] for name in slot["params"]} == slot["params"]


async def test_slots_tell_how_their_last_request_ended(server):
    body = {**ASKED, "n_predict": 6, "n_probs": 0, "id_slot": 1}
    word = (await post(server, "/completion", json=body))["content"][2:4]
    for options, ending in (({}, "limit"), ({"stop": [word]}, "word")):
        await post(server, "/completion", json={**body, **options})
        _, slot, *_ = (await server.http.get("/slots")).json()
        states = {name: slot["next_token"][f"stopped_{name}"] for name in ("eos", "limit", "word")}
        assert [name for name, is_it in states.items() if is_it] == [ending]
    assert slot["next_token"]["stopping_word"] == word


async def test_completions(server):
    answer = await post(server, "/completion", json=ASKED)
    for fields in COMPLETION.values():
        assert fields - set(answer) == set()
    assert (OLDER_SETTINGS | NEWER_SETTINGS) - set(answer["generation_settings"]) == set()


@pytest.mark.parametrize("after", [False, True])
async def test_probabilities(server, after):
    body = {**ASKED, "post_sampling_probs": after, "temperature": 1e6, "samplers": ["temperature"]}
    answer = await post(server, "/completion", json=body)
    response = await server.http.post("/completion", json={**body, "stream": True})
    streamed = [item for e in events_of(response.text) for item in e.get("completion_probabilities", [])]
    assert streamed == answer["completion_probabilities"]
    for item in streamed:
        assert PROBABILITY["000, 002"] <= set(item)
        assert after or PROBABILITY["004"] <= set(item)
        assert item["content"] == item["token"]
        newer = item["top_probs" if after else "top_logprobs"]
        assert [rival["tok_str"] for rival in item["probs"]] == [rival["token"] for rival in newer]
        assert len(item["probs"]) == 2
        assert 1 >= item["probs"][0]["prob"] >= item["probs"][1]["prob"] > 0


async def test_props(server):
    props = (await server.http.get("/props")).json()
    for fields in PROPS.values():
        assert fields - set(props) == set()
    defaults = props["default_generation_settings"]
    assert (OLDER_SETTINGS | SLOT["004"]) - set(defaults) == set()


async def test_tokenize_needs_a_content(server):
    for body in ({}, {"content": None}, {"text": "a"}):
        assert (await post(server, "/tokenize", 400, json=body))["param"] == "content"
    assert await post(server, "/tokenize", json={"content": ""}) == {"tokens": []}
