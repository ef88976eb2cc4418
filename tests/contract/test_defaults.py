"""Options that say what requests get which do not say otherwise."""

from __future__ import annotations

import pytest

from corral.cli.configuration import configure
from corral.cli.options import sampling
from corral.core.errors import CorralError
from corral.models.defaults import check_tokens
from tests.contract.inline import Server
from tests.tools.flag_example import example

_ELSEWHERE = ("cfg_negative_prompt", "cfg_negative_prompt_file", "cfg_scale")


def serving(*argv) -> Server:
    return Server(settings=configure(["-m", "fake.gguf", *argv], {}).settings)


async def params_of(server: Server) -> dict:
    props = (await server.http.get("/props")).json()
    return props["default_generation_settings"]["params"]


@pytest.mark.parametrize(
    "option",
    [o for o in sampling.OPTIONS if o.target.split(".")[1] not in _ELSEWHERE],
    ids=lambda o: o.long_name,
)
async def test_every_sampling_option_is_a_default_that_props_shows(option):
    words = ["--no-penalize-nl"] if option.default is True else [option.long_name, *example(option)]
    if option.long_name == "--logit-bias":
        words = [option.long_name, "3+1.5"]
    plain, set_up = serving("-s", "1"), serving("-s", "1", *words)
    before, after = await params_of(plain), await params_of(set_up)
    changed = {name for name in after if after[name] != before[name]}
    assert changed, words
    answer = await set_up.complete(prompt="abc", n_predict=2)
    assert {name: answer["generation_settings"][name] for name in changed} == {
        name: after[name] for name in changed
    }


async def test_a_request_may_say_otherwise():
    server = serving("--temp", "0.1", "--top-k", "3", "-r", "x", "--ignore-eos", "-l", "5-inf", "-n", "3")
    answer = await server.complete(
        prompt="abc", top_k=7, stop=["y"], ignore_eos=False, logit_bias=[[6, 1]], n_predict=2
    )
    used = answer["generation_settings"]
    assert (used["temperature"], used["top_k"], used["stop"], used["ignore_eos"], used["n_predict"]) == (
        pytest.approx(0.1),
        7,
        ["y"],
        False,
        2,
    )
    assert used["logit_bias"] == [{"bias": 1, "token": 6}]


async def test_a_seed_for_everybody():
    server = serving("--seed", "42")
    answer = await server.complete(prompt="abc", n_predict=1)
    assert answer["generation_settings"]["seed"] == 42
    random = await serving().complete(prompt="abc", n_predict=1)
    assert random["generation_settings"]["seed"] != 42


async def test_reverse_prompts_stop_answers_and_backslashes_are_read():
    server = serving("-r", r"a\n", "-r", r"b\x41\\", "--dry-sequence-breaker", r"\t")
    params = await params_of(server)
    assert params["stop"] == ["a\n", "bA\\"]
    assert params["dry_sequence_breakers"] == ["\t"]
    assert (await params_of(serving("--no-escape", "-r", r"a\n")))["stop"] == [r"a\n"]


async def test_special_tokens_are_shown_when_asked_for():
    ended = 0
    for seed in range(8):
        words = ("--seed", str(seed), "--n-predict", "200")
        hidden = await serving(*words).complete(prompt="ab")
        shown = await serving("--special", *words).complete(prompt="ab")
        is_ended = hidden["stop_type"] == "eos"
        assert shown["content"] == hidden["content"] + ("</s>" if is_ended else "")
        ended += is_ended
    assert ended


def test_tokens_that_are_none():
    settings = configure(["-l", "99+1"], {}).settings
    check_tokens(settings.sampling, 100)
    with pytest.raises(CorralError, match=r"--logit-bias.*99.*98"):
        check_tokens(settings.sampling, 99)
