"""The grammars of tool calls, on the default model's vocabulary: whatever follows them is a call."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace

import jsonschema
import llguidance.llamacpp
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from corral.chat.grammar import Grammar, seq
from corral.chat.json_schema import prepare_schema
from corral.chat.tool import Freedom, ToolUse
from corral.cli.default_model import find_default_model
from corral.llama import library
from corral.llama.model import Model
from tests.tools.answer import BY_NAME, FAMILIES, PARIS, ROME, TOUR, USE, Message, read

MAX_TOKENS = 400
N_FREE = 40  # tokens that a walk chooses blindly before it looks for the end
SEEDS = range(4)
NAMES = pytest.mark.parametrize("name", FAMILIES)
# Strings with rules are quoted between tags, which no model does of its own.
TOUR = (TOUR[0], {key: value for key, value in TOUR[1].items() if key != "code"})
ENDS = ["</parameter>", "</arg_value>", "<|end|>"]


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[LLTokenizer]:
    library.start(False)
    model = Model.open(str(find_default_model()), vocab_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # llguidance calls what llama.cpp has renamed
        tokenizer = llguidance.llamacpp.lltokenizer_from_vocab(model.vocab.handle)
    yield tokenizer
    model.close()


def matcher_of(name: str, tokenizer: LLTokenizer, is_parallel: bool = True) -> LLMatcher:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar_of(name, is_parallel)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def grammar_of(name: str, is_parallel: bool) -> str:
    g, format = Grammar(lambda _: None), BY_NAME[name]
    tools = tuple(replace(tool, parameters=prepare_schema(tool.parameters, "tools")) for tool in USE.tools)
    use = ToolUse(tools, Freedom.REQUIRED, is_parallel)
    return g.build(seq(format.lead(g), g.mark(*format.trigger), format.calls(g, use)))


def accepts(matcher: LLMatcher, tokenizer: LLTokenizer, text: str) -> bool:
    """Whether the text is all that the grammar wants."""
    matcher = matcher.deep_copy()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@NAMES
def test_what_models_write_is_accepted(name, tokenizer):
    family, matcher = FAMILIES[name], matcher_of(name, tokenizer)
    for calls in ([PARIS], [ROME], [TOUR], [PARIS, ROME, TOUR]):
        if len(calls) == 1 or name != "llama3":  # which calls one function at a time
            assert accepts(matcher, tokenizer, family.calls(calls))


@NAMES
def test_one_call_is_enough_where_no_more_are_wanted(name, tokenizer):
    family, matcher = FAMILIES[name], matcher_of(name, tokenizer, is_parallel=False)
    assert accepts(matcher, tokenizer, family.calls([ROME]))
    assert not accepts(matcher, tokenizer, family.calls([ROME, PARIS]))


@NAMES
@pytest.mark.parametrize(
    "wrong",
    [
        {"city": "Rome", "days": "many"},
        {"city": "Rome", "unit": "kelvin"},
        {"days": 3},
        {"city": "Rome", "more": 1},
    ],
    ids=["type", "enum", "missing", "unknown"],
)
def test_wrong_arguments_are_refused(name, wrong, tokenizer):
    text = FAMILIES[name].calls([("get_weather", wrong)])
    assert not accepts(matcher_of(name, tokenizer), tokenizer, text)


@NAMES
def test_unknown_functions_are_refused(name, tokenizer):
    text = FAMILIES[name].calls([("no_such", {"city": "Rome"})])
    assert not accepts(matcher_of(name, tokenizer), tokenizer, text)


@NAMES
@pytest.mark.parametrize("is_parallel", [True, False])
def test_whatever_the_grammar_allows_is_a_call_of_the_right_form(name, is_parallel, tokenizer):
    matcher = matcher_of(name, tokenizer, is_parallel)
    closing = ['"', "}", "]", *(end for end in ENDS if end in grammar_of(name, is_parallel))]
    n_ended = 0
    for seed in SEEDS:
        text = walk(matcher.deep_copy(), tokenizer, closing, random.Random(f"{name} {seed}"))
        if text is None:
            continue
        n_ended += 1
        message = read(BY_NAME[name], [text])
        assert message == Message("", message.reasoning, message.calls), text
        assert message.calls if is_parallel else len(message.calls) == 1
        for function, arguments in message.calls:
            jsonschema.validate(arguments, USE.find(function).parameters)
    assert n_ended > len(SEEDS) // 2


def walk(matcher: LLMatcher, tokenizer: LLTokenizer, closing: list[str], chance: random.Random) -> str | None:
    """A text that follows the grammar and nothing else; None if it has no end within reach."""
    ways_out = [tokenizer.tokenize_str(text) for text in closing]
    tokens: list[int] = []
    while len(tokens) < MAX_TOKENS:
        allowed = allowed_tokens(matcher)
        is_late = len(tokens) > N_FREE
        if tokenizer.eos_token in allowed and (len(allowed) == 1 or is_late or chance.random() < 0.3):
            return tokenizer.decode_bytes(tokens).decode()
        outs = [way for way in ways_out if is_late and matcher.validate_tokens(way) == len(way)]
        chosen = chance.choice(outs) if outs else [int(allowed[chance.randrange(len(allowed))])]
        if chosen != [tokenizer.eos_token]:
            assert matcher.consume_tokens(chosen), matcher.get_error()
            tokens += chosen
    return None


def allowed_tokens(matcher: LLMatcher) -> np.ndarray:
    return np.flatnonzero(
        np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    )
