"""Infilling on the real command: a model that cannot, and one that can."""

from __future__ import annotations

import json

import pytest

from tests.system.process import CorralProcess
from tests.tools.tiny_models import FIM, llama_fim

PREFIX = "def hello(you):\n    return "
SUFFIX = "\n\nhello(world)\n"
EXTRAS = [{"filename": "one.py", "text": "# the world\n"}, {"text": "# and you\n"}]
GAP = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 16, "seed": 5}


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    return llama_fim(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(coder):
    with CorralProcess("-m", coder, "-c", 1024, "-b", 256, "-fa", "off") as server:
        yield server


def infill(server: CorralProcess, **body) -> dict:
    response = server.post("/infill", **{**GAP, **body})
    assert response.status_code == 200, response.text
    return response.json()


def tokens_of(server: CorralProcess, *parts: str) -> list[int]:
    """Texts and names of marks in a row, each tokenized for itself."""
    bodies = ({"content": FIM.get(part, part), "parse_special": part in FIM} for part in parts)
    return [token for body in bodies for token in server.post("/tokenize", **body).json()["tokens"]]


def test_the_default_model_says_what_it_lacks(corral):
    response = corral.post("/infill", **GAP)
    assert response.status_code == 501
    error = response.json()["error"]
    assert error["type"] == "not_supported_error"
    for name in ("prefix", "suffix", "middle"):
        assert f"no {name} token" in error["message"]


@pytest.mark.parametrize("extras", [[], EXTRAS])
def test_the_answer_is_that_of_a_prompt_built_by_hand(server, extras):
    files = [part for e in extras for part in ("sep", f"{e.get('filename', 'tmp')}\n", e["text"])]
    own = ["sep", "filename\n", "pre", PREFIX, "suf", SUFFIX, "mid", "hello"]
    prompt = tokens_of(server, "rep", "myproject\n", *files, *own)
    options = {"n_predict": 16, "seed": 5, "return_tokens": True, "n_probs": 2}
    by_hand = server.complete(prompt=prompt, **options)
    answer = infill(server, prompt="hello", input_extra=extras, return_tokens=True, n_probs=2)
    for key in ("content", "tokens", "prompt", "tokens_evaluated", "stop_type", "completion_probabilities"):
        assert answer[key] == by_hand[key]
    assert answer["tokens_evaluated"] == len(prompt)
    assert "warnings" not in answer


def test_streaming_joined_equals_not_streaming(server):
    whole = infill(server, input_extra=EXTRAS)
    response = server.post("/infill", **GAP, input_extra=EXTRAS, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_megabytes_are_cut_to_what_fits(server):
    long = "hello world\n" * 200_000
    answer = infill(server, input_prefix=long, input_suffix=long, input_extra=[{"text": long}] * 3)
    assert answer["tokens_evaluated"] == 1024 - 2 * 16 - 256 + 3 * 64 + 62 + 3
    assert len(answer["warnings"]) == 3
    assert answer["tokens_predicted"] == 16


def test_the_suffix_first_in_a_context_smaller_than_a_batch(coder):
    with CorralProcess("-m", coder, "-c", 256, "--spm-infill") as server:
        answer = infill(server, prompt="hello")
        assert answer["prompt"].endswith(f"{FIM['suf']}{SUFFIX}{FIM['pre']}{PREFIX}{FIM['mid']}hello")
        answer = infill(server, input_prefix="the " * 5000, input_suffix="you " * 5000, n_predict=-1)
        assert answer["tokens_evaluated"] < 256
        assert len(answer["warnings"]) == 2
