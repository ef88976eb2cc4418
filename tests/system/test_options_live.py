"""Options of llama-server on the real command, with a tiny model: each is shown by its effect.

What other files of this directory show (adapters, TLS, logs, grammars from files, positions, pictures) is not
repeated here. The samplers' arithmetic is checked in `tests/model`; here, that the command line reaches it.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.system.process import START_S, CorralProcess, Stream
from tests.tools.llama_server_options import GROUPS, UNUSED, command_lines

PROMPT = "hello world\nthe and of the and of the"
EOS, LOUD = 326, 98
NO_TEXT = os.fsdecode(b"\xff.gguf")


def start(tiny: Path, *options: object, **env: str) -> CorralProcess:
    return CorralProcess("-m", tiny, "-t", 1, *options, env=env)


@pytest.fixture(scope="module")
def plain(tiny):
    """Two slots of 256 tokens, and nothing else said."""
    with start(tiny, "-c", 512, "-np", 2, "--slots", "--context-shift", "-v") as server:
        yield server


# The samplers: fields of a request that switch everything off, and flags that switch all of it on. What has
# no effect alone is shown together with fields of the request that let it have one.
NEUTRAL: dict[str, Any] = {
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "tfs_z": 1,
    "typical_p": 1,
    "top_n_sigma": -1,
    "xtc_probability": 0,
    "xtc_threshold": 0.1,
    "repeat_last_n": 64,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "penalize_nl": True,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["x"],
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "mirostat": 0,
    "logit_bias": [[LOUD, 0]],
    "ignore_eos": False,
    "samplers": "edskfypmxt",
}
DRY = {"dry_multiplier": 2, "temperature": 5}
FLAGS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "--temp 1.7": ("temperature", 1.7, {}),
    "--top-k 3": ("top_k", 3, {}),
    "--top-p 0.7": ("top_p", 0.7, {}),
    "--min-p 0.1": ("min_p", 0.1, {}),
    "--tfs 0.7": ("tfs_z", 0.7, {}),
    "--typical 0.6": ("typical_p", 0.6, {}),
    "--top-nsigma 0.9": ("top_n_sigma", 0.9, {}),
    "--xtc-probability 1": ("xtc_probability", 1, {"xtc_threshold": 0.02}),
    "--xtc-threshold 0.02": ("xtc_threshold", 0.02, {"xtc_probability": 1}),
    "--repeat-last-n 1": ("repeat_last_n", 1, {"repeat_penalty": 3}),
    "--repeat-penalty 1.5": ("repeat_penalty", 1.5, {}),
    "--presence-penalty 1.5": ("presence_penalty", 1.5, {}),
    "--frequency-penalty 1.5": ("frequency_penalty", 1.5, {}),
    "--no-penalize-nl": ("penalize_nl", False, {"presence_penalty": -9}),
    "--dry-multiplier 2": ("dry_multiplier", 2, {"temperature": 5}),
    "--dry-base 3": ("dry_base", 3, DRY),
    "--dry-allowed-length 4": ("dry_allowed_length", 4, DRY),
    "--dry-penalty-last-n 3": ("dry_penalty_last_n", 3, DRY),
    "--dry-sequence-breaker the": ("dry_sequence_breakers", ["the"], DRY),
    "--dynatemp-range 0.9": ("dynatemp_range", 0.9, {}),
    "--dynatemp-exp 3": ("dynatemp_exponent", 3, {"dynatemp_range": 0.9}),
    "--samplers temperature;top_p": ("samplers", ["temperature", "top_p"], {"top_p": 0.7, "temperature": 2}),
    f"-l {LOUD}+4": ("logit_bias", [[LOUD, 4]], {}),
}


@pytest.fixture(scope="module")
def sampled(tiny):
    """All of the flags at once."""
    words = [word for flag in FLAGS for word in flag.split()]
    with start(tiny, "-c", 512, *words, "--ignore-eos", "-s", 5) as server:
        yield server


def distribution(server: CorralProcess, **body: object) -> dict[int, float]:
    """What is left of the first token's candidates, and how probable each is."""
    fields = {"prompt": PROMPT, "n_predict": 1, "n_probs": 400, "post_sampling_probs": True, **body}
    token, *_ = server.complete(**fields)["completion_probabilities"]  # more, if they complete a character
    return {item["id"]: round(item["prob"], 9) for item in token["top_probs"]}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_sampling_flag_is_what_the_field_is(plain, sampled, flag):
    field, value, others = FLAGS[flag]
    off = {**NEUTRAL, **others}
    by_flag = distribution(sampled, **{name: off[name] for name in off if name != field})
    assert by_flag == distribution(plain, **{**off, field: value})
    assert by_flag != distribution(plain, **off)


def test_a_seed_repeats_itself(plain, sampled):
    body = {**NEUTRAL, "prompt": PROMPT, "n_predict": 30, "return_tokens": True}
    first, again = (sampled.complete(**body)["tokens"] for _ in range(2))
    assert first == again == plain.complete(**body, seed=5)["tokens"]
    assert first != plain.complete(**body)["tokens"]


def test_ignore_eos(plain, sampled):
    body = {"prompt": PROMPT, "n_predict": 5, "logit_bias": [[EOS, 1000]]}
    assert plain.complete(**body)["stop_type"] == "eos"
    assert sampled.complete(**body)["stop_type"] == "limit"


# Everything else: two servers that have nothing in common with the plain one.
@pytest.fixture(scope="module")
def changed(tiny, tmp_path_factory):
    directory = tmp_path_factory.mktemp("static")
    (directory / "page.html").write_text("a page")
    size = ("-c", 512, "-np", 2, "-b", 64, "-ub", 32, "-tb", 9, "-n", 600)
    shift = ("--context-shift", "--keep", 5, "-nocb", "-sps", 0.95)
    answers = ("-r", r"e\nt", "-sp", "-a", "someone", "--path", directory)
    with start(tiny, *size, *shift, *answers, "-fa", "--no-mmap", "--slots", "--metrics", "-v") as server:
        yield server


@pytest.fixture(scope="module")
def other(tiny):
    sampling = ("--mirostat", 2, "--mirostat-lr", 0.4, "--mirostat-ent", 2, "--sampling-seq", "tp")
    groups = ("-gan", 2, "-gaw", 64, "-c", 1024)
    with start(tiny, *groups, *sampling, "-r", r"e\nt", "--no-escape", "--mlock", "--no-slots") as server:
        yield server


def logged(server: CorralProcess, name: str) -> list[str]:
    """What libllama said of its contexts; the largest one comes last."""
    found = re.findall(rf"llama_context: {name} += (\S+)", "".join(server.lines))
    return sorted(set(found), key=lambda text: (len(text), text))


def test_batches_and_attention_are_told_to_libllama(plain, changed):
    assert [logged(server, "n_ubatch")[-1] for server in (plain, changed)] == ["512", "32"]
    assert ["enabled" in logged(server, "flash_attn") for server in (plain, changed)] == [False, True]
    assert int(logged(changed, "n_batch")[-1]) < 100 < int(logged(plain, "n_batch")[-1])


def test_threads(plain, changed):
    for server in (plain, changed):
        server.complete(prompt="hello " * 50, n_predict=1)
    assert changed.engine.num_threads() >= 9 > plain.engine.num_threads()


def test_the_file_is_mapped_read_or_locked(plain, changed, other, tiny):
    def mapped(server: CorralProcess) -> bool:
        return str(tiny) in Path(f"/proc/{server.engine.pid}/maps").read_text()

    def n_locked(server: CorralProcess) -> int:
        return int(re.search(r"VmLck:\s+(\d+)", Path(f"/proc/{server.engine.pid}/status").read_text())[1])

    assert [mapped(server) for server in (plain, changed)] == [True, False]
    may_lock = "mlock" not in "".join(other.lines)
    assert (n_locked(plain), n_locked(other) > 0) == (0, may_lock)


def test_answers_are_as_long_as_said(changed):
    endless = {"prompt": PROMPT, "ignore_eos": True, "stop": []}
    assert changed.complete(**endless)["tokens_predicted"] == 600
    assert changed.complete(**endless, n_predict=9)["tokens_predicted"] == 9
    assert changed.complete(**endless, n_predict=605)["tokens_predicted"] == 605


def test_reverse_prompts_with_and_without_escapes(plain, changed, other):
    ask = {"prompt": "x", "grammar": r'root ::= "one\ntwo"', "n_predict": 20}
    literally = {"prompt": "x", "grammar": r'root ::= "one\\ntwo"', "n_predict": 20}
    texts = [
        [server.complete(**body)["content"] for body in (ask, literally)]
        for server in (plain, changed, other)
    ]
    assert texts == [["one\ntwo", r"one\ntwo"], ["on", r"one\ntwo"], ["one\ntwo", "on"]]
    stopped = changed.complete(**ask)
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "e\nt")


def test_control_tokens_are_shown(plain, changed):
    body = {"prompt": PROMPT, "logit_bias": [[EOS, 1000]], "n_predict": 3}
    assert [server.complete(**body)["content"] for server in (plain, changed)] == ["", "<|im_end|>"]


def test_what_is_kept_of_a_prompt(plain, changed):
    prompt = list(range(40, 60))
    for server, n_keep in ((plain, 0), (changed, 5)):
        answer = server.complete(prompt=prompt, n_predict=400, id_slot=0)
        assert (answer["tokens_predicted"], answer["truncated"]) == (400, True)
        held = server.post("/slots/0?action=tokens").json()["tokens"]
        assert held[:n_keep] == prompt[:n_keep]
        assert held[n_keep : n_keep + 5] != prompt[n_keep : n_keep + 5]


async def test_prompts_wait_for_answers_only_without_continuous_batching(plain, changed):
    for server, waits in ((plain, False), (changed, True)):
        endless = Stream(server.url, prompt="hello", n_predict=100_000, ignore_eos=True)
        await endless.reach(5)
        newcomer = asyncio.create_task(asyncio.to_thread(server.complete, prompt="world", n_predict=2))
        if waits:
            await endless.reach(len(endless.events) + 300)
            assert not newcomer.done()
        else:
            assert (await newcomer)["tokens_predicted"] == 2
        assert not endless.task.done()
        endless.task.cancel()
        await newcomer


def test_how_similar_a_prompt_must_be(plain, changed):
    first, alike = [70] * 30 + [71] * 10, [70] * 30 + [72] * 10
    used = []
    for server in (plain, changed):
        server.complete(prompt=[80] * 20, n_predict=1, id_slot=0)
        server.complete(prompt=first, n_predict=1, id_slot=1)
        used.append(server.complete(prompt=alike, n_predict=1)["id_slot"])
    assert used == [1, 0]


def test_names_routes_and_files(plain, changed, other):
    assert [s.get("/metrics").status_code for s in (plain, changed)] == [501, 200]
    assert [s.get("/slots").status_code for s in (changed, other)] == [200, 501]
    assert [s.get("/page.html").status_code for s in (plain, changed)] == [404, 200]
    assert changed.get("/page.html").text == "a page"
    assert changed.get("/v1/models").json()["data"][0]["id"] == "someone"


def test_mirostat(plain, other):
    body = {"prompt": PROMPT, "n_predict": 40, "seed": 3, "return_tokens": True, "temperature": 1.5}
    fields = {"mirostat": 2, "mirostat_eta": 0.4, "mirostat_tau": 2}
    steered = other.complete(**body)["tokens"]
    assert steered == plain.complete(**body, **fields)["tokens"]
    for name, value in {"mirostat": 0, "mirostat_eta": 0.01, "mirostat_tau": 6}.items():
        assert steered != plain.complete(**body, **{**fields, name: value})["tokens"]


def test_samplers_by_letters(plain, other):
    fields = {**NEUTRAL, "top_p": 0.7, "temperature": 2}
    left = distribution(other, **{name: fields[name] for name in fields if name != "samplers"})
    assert left == distribution(plain, **{**fields, "samplers": ["temperature", "top_p"]})
    assert left != distribution(plain, **{**fields, "samplers": ["top_p", "temperature"]})


def test_self_extend_groups_what_is_long(plain, other):
    def tokens(server: CorralProcess, n: int) -> list[int]:
        fields = {"n_predict": 20, "temperature": 0, "mirostat": 0, "return_tokens": True}
        return server.complete(prompt=[40 + i % 50 for i in range(n)], **fields)["tokens"]

    assert tokens(other, 30) == tokens(plain, 30)
    assert tokens(other, 200) != tokens(plain, 200)


# From everywhere at once.
def test_a_file_the_environment_and_the_command_line_together(tiny, tmp_path):
    path = tmp_path / "corral.toml"
    rule = "grammar = 'root ::= \"aaaaaaaaa\"'"
    path.write_text(f"model = {str(tiny)!r}\nctx-size = 256\npredict = 3\nalias = 'file'\n{rule}\n")
    unused = [words for words in _everything() if words[0] in UNUSED.split()]
    environ = {"LLAMA_ARG_CONFIG": str(path), "LLAMA_ARG_ALIAS": "environment", "LLAMA_ARG_CTX_SIZE": "512"}
    environ |= {"LLAMA_ARG_FLASH_ATTN": "1", "LLAMA_ARG_ALAIS": "x"}
    words = ["-c", "767", "-ngl", "3", "--no-context-shift", *(word for line in unused for word in line)]
    with CorralProcess(*words, env=environ) as server:
        props = server.get("/props").json()
        assert props["model_alias"] == "environment"
        assert props["default_generation_settings"]["n_ctx"] == 768
        assert server.complete(prompt="x")["content"] == "aaa"
    notes = [line.partition("warning: ")[2].strip() for line in server.lines if "warning: " in line]
    expected = [
        f"{line[0]} is ignored: it is for another program of llama.cpp, or for an older version"
        for line in unused
    ]
    *first, layers, rounded = notes
    assert first == [
        *expected,
        "-c 767 overrides LLAMA_ARG_CTX_SIZE=512 from the environment",
        "LLAMA_ARG_ALAIS is ignored: unknown option; did you mean LLAMA_ARG_ALIAS?",
    ]
    assert "--n-gpu-layers 3" in layers
    assert "--ctx-size 767 was rounded up to 768" in rounded


def _everything() -> list[list[str]]:
    return [words for text in GROUPS.values() for words in command_lines(text)]


# What could crash. A start either serves and ends with 0, or ends by itself with a message.
SERVES: dict[str, tuple[list[object], dict[str, str]]] = {
    "many slots": (["-np", 256, "-c", 512], {}),
    "the model's context in three parts": (["-np", 3, "-c", 0], {}),
    "a physical batch larger than the logical": (["-b", 64, "-ub", 2048], {}),
    "more kept than there is": (["-c", 64, "--keep", 10**6, "--context-shift"], {}),
    "a context of one token": (["-c", 1], {}),
    "a context of two tokens": (["-c", 2, "-np", 2], {}),
    "no file in the environment": ([], {"LLAMA_ARG_CONFIG": "", "LLAMA_ARG_MODEL": ""}),
}


@pytest.mark.parametrize(("options", "environ"), SERVES.values(), ids=SERVES)
def test_odd_options_that_serve(tiny, options, environ):
    with start(tiny, *options, **environ) as server:
        answer = server.complete(prompt="hello world", n_predict=80, ignore_eos=True)
        assert answer["tokens_predicted"] >= 1
        assert server.post("/v1/embeddings", input="hello").status_code in (200, 400)
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)
    assert "engine lost" not in "".join(server.lines)


@pytest.mark.parametrize("option", ["--alias", "--reverse-prompt", "--chat-template", "--model"])
def test_words_that_are_no_text(refused, tiny, tmp_path, option):
    path = tmp_path / NO_TEXT
    path.symlink_to(tiny)
    status, said = refused("-m", tiny, option, path)
    assert (status, f"corral: {option}: the value is not UTF-8" in said) == (2, True)


@pytest.mark.parametrize(("words", "env"), [(["--api-key", ""], {}), ([], {"LLAMA_API_KEY": " , "})], ids=str)
def test_a_key_that_is_empty(refused, monkeypatch, tiny, words, env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    status, said = refused("-m", tiny, *words)
    assert (status, "the key is empty; give a key, or omit the option" in said) == (2, True)


def test_a_batch_smaller_than_what_the_engine_tries(tiny):
    with CorralProcess("-m", tiny, "-c", 512, "-b", 16, wait=False) as server:
        server.url = server.wait_for(r"ready on (\S+)")
        assert server.complete(prompt="hello " * 30, n_predict=4)["tokens_predicted"] == 4


REFUSED: dict[str, tuple[int, list[object], dict[str, str], str]] = {
    "a directory": (1, ["-m", "{dir}"], {}, "'{dir}' is a directory; pass a model file in it"),
    "a pipe": (1, ["-m", "{dir}/pipe"], {}, "model '{dir}/pipe': it is not a regular file"),
    "a text": (1, ["-m", "{dir}/text"], {}, "model '{dir}/text': it is not a GGUF file"),
    "a token": (1, ["-l", "999999+1"], {}, "--logit-bias: token 999999 does not exist"),
    "too long": (1, ["-c", 2**31 - 1, "--batch-exact"], {}, "--fit on uses the first of these"),
}


@pytest.mark.parametrize(("status", "options", "environ", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_ends_with_a_message(tiny, tmp_path, status, options, environ, message):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello\n" * 99)
    words = [option.format(dir=tmp_path) if isinstance(option, str) else option for option in options]
    server = CorralProcess("-m", tiny, *words, wait=False, env=environ)
    assert server.process.wait(START_S) == status
    server.stop()
    assert message.format(dir=tmp_path) in server.lines[-1]
    assert "Traceback" not in "".join(server.lines)


# The same, of options that are looked at before anything is loaded.
WRONG: dict[str, tuple[list[object], dict[str, str], str]] = {
    "a template": (["--chat-template", "{% no"], {}, "the chat template is not valid jinja"),
    "a directory as file": (["--config", "/"], {}, "--config: cannot read /: "),
    "no number": ([], {"LLAMA_ARG_CTX_SIZE": ""}, "LLAMA_ARG_CTX_SIZE: '' is not an integer"),
    "no flag": ([], {"LLAMA_ARG_MLOCK": ""}, "LLAMA_ARG_MLOCK: '' is not on or off"),
}


@pytest.mark.parametrize(("options", "environ", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_ends_with_a_message(refused, monkeypatch, tiny, options, environ, message):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    status, said = refused("-m", tiny, *options)
    assert (status, message in said) == (2, True), said
