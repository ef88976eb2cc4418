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
from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.cli.default_model import find_default_model
from corral.grammar.json_schema import prepare_schema
from corral.llama import library
from corral.llama.model import Model
from tests.tools.answer import BY_NAME, FAMILIES, PARIS, ROME, TOUR, USE, Message, read

MAX_TOKENS = 400
N_FREE = 40  # tokens that a walk chooses blindly before it looks for the end
SEEDS = range(10)
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


def matcher_of(name: str, tokenizer: LLTokenizer, kind: str = "parallel") -> LLMatcher:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar_of(name, kind)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def grammar_of(name: str, kind: str, use: ToolUse = USE) -> str:
    g, format = Grammar(control_tokens(name).get if kind == "control" else lambda _: None), BY_NAME[name]
    tools = tuple(
        replace(tool, parameters=prepare_schema(tool.parameters, "tools", "flexible")) for tool in use.tools
    )
    use = ToolUse(tools, ToolChoice.REQUIRED, is_parallel=kind != "single")
    return g.build(seq(format.lead(g), g.mark(*format.trigger), format.calls(g, use)))


def control_tokens(name: str) -> dict[str, int]:
    """Control tokens of the vocabulary, given to the markers of a family as if they were its own."""
    return {marker: 3 + i for i, marker in enumerate(BY_NAME[name].markers)}


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
    family, matcher = FAMILIES[name], matcher_of(name, tokenizer, "single")
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


SHIP = {
    "type": "object",
    "properties": {"mode": {"enum": ["air", "sea"]}, "port": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["mode"],
    "if": {"properties": {"mode": {"const": "sea"}}},
    "then": {"required": ["port"]},
    "else": {"properties": {"port": False}},
    "additionalProperties": False,
}


@NAMES
def test_alternatives_of_all_arguments_are_told_apart(name, tokenizer):
    use = ToolUse((Tool("ship", SHIP, {}),), ToolChoice.REQUIRED)
    grammar = LLMatcher.grammar_from_lark(grammar_of(name, "single", use))
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    for arguments in (
        *({"mode": "sea", "port": "Oslo"}, {"mode": "sea", "port": "Oslo", "n": 1}),
        *({"mode": "air"}, {"mode": "air", "n": 1}, {"mode": "sea"}, {"mode": "air", "port": "Oslo"}),
    ):
        is_valid = jsonschema.Draft202012Validator(SHIP).is_valid(arguments)
        assert accepts(matcher, tokenizer, FAMILIES[name].calls([("ship", arguments)])) is is_valid, arguments


@NAMES
def test_unknown_functions_are_refused(name, tokenizer):
    text = FAMILIES[name].calls([("no_such", {"city": "Rome"})])
    assert not accepts(matcher_of(name, tokenizer), tokenizer, text)


@pytest.mark.one_in(4)
@NAMES
@pytest.mark.parametrize("kind", ["parallel", "single", "control"])
def test_whatever_the_grammar_allows_is_a_call_of_the_right_form(name, kind, tokenizer):
    matcher, outs = matcher_of(name, tokenizer, kind), ways_out(name, kind, tokenizer)
    n_ended = 0
    for seed in SEEDS:
        tokens = walk(matcher.deep_copy(), tokenizer.eos_token, outs, random.Random(f"{name} {seed}"))
        if tokens is None:
            continue
        n_ended += 1
        text = text_of(name, kind, tokenizer, tokens)
        message = read(BY_NAME[name], [text])
        assert message == Message("", message.reasoning, message.calls), text
        assert len(message.calls) == 1 if kind == "single" else message.calls
        for function, arguments in message.calls:
            jsonschema.validate(arguments, USE.find(function).parameters)
    assert n_ended > len(SEEDS) // 2


def ways_out(name: str, kind: str, tokenizer: LLTokenizer) -> list[list[int]]:
    """What may end a string, an object, a list, or a text between tags."""
    controls = control_tokens(name) if kind == "control" else {}
    texts = ['"', "}", "]", *(end for end in ENDS if end in grammar_of(name, "parallel"))]
    return [[controls[text]] if text in controls else tokenizer.tokenize_str(text) for text in texts]


def walk(matcher: LLMatcher, eos: int, outs: list[list[int]], chance: random.Random) -> list[int] | None:
    """Tokens that follow the grammar and nothing else; None if there is no end within reach."""
    tokens: list[int] = []
    while len(tokens) < MAX_TOKENS:
        allowed = allowed_tokens(matcher)
        is_late = len(tokens) > N_FREE
        if eos in allowed and (len(allowed) == 1 or is_late or chance.random() < 0.3):
            return tokens
        ways = [way for way in outs if is_late and matcher.validate_tokens(way) == len(way)]
        chosen = chance.choice(ways) if ways else [int(allowed[chance.randrange(len(allowed))])]
        if chosen != [eos]:
            assert matcher.consume_tokens(chosen), matcher.get_error()
            tokens += chosen
    return None


def text_of(name: str, kind: str, tokenizer: LLTokenizer, tokens: list[int]) -> str:
    controls = {token: marker.encode() for marker, token in control_tokens(name).items() if kind == "control"}
    return b"".join(controls.get(token) or tokenizer.decode_bytes([token]) for token in tokens).decode()


def allowed_tokens(matcher: LLMatcher) -> np.ndarray:
    return np.flatnonzero(
        np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    )
