"""Grammars and shared prompts on real libllama: answers follow, neighbours do not notice."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest
from gguf import TokenType

from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.chat.message import parse_messages
from corral.chat.prompt import Chat
from corral.core.errors import CorralError
from corral.core.params import Constraint, SamplingParams
from corral.core.result import Failed, StopType
from corral.generate.constraint import grammar_or_schema
from corral.llama.constraint import Compiler
from corral.llama.model import Model
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, alone, task
from tests.tools.failure import status_of
from tests.tools.family import load
from tests.tools.tiny_models import write_file

HOT = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
}


def on(*names) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


def schema(value: object) -> Constraint:
    return grammar_or_schema("", value, "spaced")


def seeded(sampling: SamplingParams, seed: int) -> SamplingParams:
    return msgspec.structs.replace(sampling, seed=seed)


@on("llama-bpe", "llama-spm", "gemma-swa", "mamba")
@pytest.mark.parametrize("kv_unified", [False, True])
def test_twins_answer_as_if_each_were_alone(model, kv_unified):
    with LlamaHarness(model, n_parallel=3, kv_unified=kv_unified) as bench:
        prompt = bench.prompt(70)
        tasks = [task(i, prompt, seeded(SEEDED, i)) for i in range(3)]
        bench.run(*tasks)
        assert sum(bench.chunk_sizes) == len(prompt)
        # In one buffer, sums over everybody's cells are rounded differently from the second token on.
        n = 1 if kv_unified else 24
        for one in tasks:
            by_itself = alone(model, one, n_parallel=3, kv_unified=kv_unified)
            assert bench.answer(one.id)[:n] == by_itself[:n]


@on("default")
def test_hot_answers_follow_their_schema(model):
    with LlamaHarness(model, n_parallel=3, n_threads=2) as bench:
        prompt = bench.backend.vocab.tokenize("A person as JSON:\n", False, False)
        tasks = [task(i, prompt, seeded(HOT, i), 200, constraint=schema(PERSON)) for i in range(6)]
        bench.run(*tasks)
        for i in range(6):
            person = json.loads(bench.text(i))
            assert list(person) == ["name", "age", "tags"]
            assert 0 <= person["age"] <= 120
            assert bench.done(i).stop_type is StopType.EOS


@on("default")
def test_neighbours_of_a_bound_answer_do_not_notice(model):
    with LlamaHarness(model, n_parallel=2, n_threads=2) as bench:
        prompt = bench.prompt(30)
        free = task(0, prompt, SEEDED)
        bench.run(free, task(1, prompt[:20], SEEDED, constraint=schema({"type": "string"})))
        assert bench.answer(0) == alone(model, free, n_parallel=2, n_threads=2)


@on("default")
def test_a_trigger_binds_what_follows_it(model):
    with LlamaHarness(model, n_threads=2) as bench:
        vocab = bench.backend.vocab
        prompt = vocab.tokenize("Count: one two three four", False, False)
        free = task(0, prompt, GREEDY, 12)
        bench.run(free)
        trigger = vocab.piece(bench.tokens(0)[1]).decode()
        constraint = Constraint(kind="lark", text='start: "!" /[0-9]{3}/', field="f", trigger=trigger)
        bench.run(task(1, prompt, GREEDY, 40, constraint=constraint))
        before, _, behind = bench.text(1).partition(trigger)
        assert bench.text(0).startswith(before + trigger)
        assert behind[0] == "!"
        assert behind[1:].isdecimal()
        assert bench.done(1).stop_type is StopType.EOS


@pytest.fixture(scope="module")
def compiler(models):
    model = Model.open(str(models / "llama-bpe.gguf"), vocab_only=True)
    yield Compiler(model.vocab)
    model.close()


def feed(matcher, vocab, text: str) -> None:
    for token in vocab.tokenize(text, False, False):
        matcher.accept(token)


@pytest.mark.parametrize(
    ("text", "first", "is_active"),
    [
        ("so go: 1", False, True),
        ("go: 1", True, True),
        (" \n go: 1", True, True),
        ("so go: 1", True, False),
        ("gogo: ", False, True),
        ("g", False, False),
    ],
)
def test_when_a_trigger_counts(compiler, text, first, is_active):
    constraint = Constraint(
        kind="lark", text='start: " " /[0-9]+/', field="f", trigger="go:", is_trigger_first=first
    )
    matcher = compiler.compile(constraint)
    feed(matcher, compiler._vocab, text)
    assert (matcher.allowed() is not None) is is_active


@pytest.mark.parametrize(
    ("text", "allows"),
    [
        ("so <a", True),
        ("[[a", True),
        ("<", True),
        ("so what", None),
        ("so <b", False),
    ],
)
def test_a_lazy_grammar_begins_with_the_first_word(compiler, text, allows):
    lazy = Constraint(
        kind="gbnf", text='root ::= ("<" | "[[") "a"* "!"', field="g", trigger_words=("<", "[[")
    )
    matcher = compiler.compile(lazy)
    if allows is False:
        with pytest.raises(CorralError) as caught:
            feed(matcher, compiler._vocab, text)
        assert caught.value.details["param"] == "g"
        return
    feed(matcher, compiler._vocab, text)
    assert (matcher.allowed() is not None) is (allows is True)
    if allows:
        feed(matcher, compiler._vocab, "!")
        assert matcher.is_finished


def test_a_lazy_grammar_begins_with_a_token(compiler):
    vocab = compiler._vocab
    token = next(
        t
        for t in range(vocab.n_tokens)
        if vocab.is_control(t) and vocab.piece(t, True) and t not in vocab.eog_tokens
    )
    text = vocab.piece(token, True).decode()
    for grammar in (f'root ::= "{text}" "a!"', f'root ::= <[{token}]> "a!"'):
        lazy = Constraint(kind="gbnf", text=grammar, field="g", trigger_tokens=(token,))
        matcher = compiler.compile(lazy)
        feed(matcher, vocab, "so ")
        assert matcher.allowed() is None
        matcher.accept(token)
        assert matcher.allowed() is not None
        feed(matcher, vocab, "a!")
        assert matcher.is_finished


def inside(part: object) -> dict:
    """A schema with the part in a place that takes some steps to reach."""
    return {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b/c": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
        "required": ["b/c"],
        "$defs": {"d": {"type": "array", "items": part}},
    }


@pytest.mark.parametrize(
    ("part", "keyword", "word"),
    [
        ({"type": "hiccup"}, "type", "hiccup"),
        ({"$ref": "http://example.org/x"}, "$ref", "example.org"),
        ({"type": "string", "maxLength": 9, "pattern": "^[a&&b]$"}, "pattern", "character class"),
        ({"type": "string", "format": "colour"}, "format", "colour"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(compiler, part, keyword, word):
    for value, pointer in ((part, "#"), (inside(part), "#/$defs/d/items")):
        with pytest.raises(CorralError, match=word) as caught:
            compiler.compile(schema(value))
        assert f"keyword '{keyword}' at {pointer} cannot" in caught.value.message
        assert caught.value.status == 400
        assert caught.value.details["param"] == "json_schema"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "string", "not": {"pattern": "a"}},
        {"type": "string", "maxLength": 9, "pattern": "^(?=x)y$"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    ],
)
def test_what_cannot_be_enforced_is_checked(compiler, part):
    for value in (part, inside(part)):
        constraint = schema(value)
        assert constraint.checks
        compiler.compile(constraint)


@pytest.mark.parametrize(
    ("value", "word"),
    [(False, "false"), ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "NoExtension")],
)
def test_schemas_that_nothing_follows_are_refused(compiler, value, word):
    with pytest.raises(CorralError, match=word) as caught:
        compiler.compile(schema(value))
    assert caught.value.status == 400
    assert caught.value.details["param"] == "json_schema"


@pytest.mark.parametrize("kind", ["gbnf", "lark"])
@pytest.mark.parametrize("field", ["grammar", "guided_grammar", "structured_outputs.grammar"])
def test_an_invalid_grammar_is_refused_by_the_name_of_its_field(compiler, kind, field):
    with pytest.raises(CorralError, match=r"^Failed to parse grammar: ") as caught:
        compiler.compile(Constraint(kind=kind, text="root ::= (", field=field))
    assert (caught.value.status, caught.value.details) == (400, {"param": field})


def accepts(compiler: Compiler, grammar: str, text: str) -> bool:
    matcher = compiler.compile(Constraint(kind="lark", text=grammar, field="f"))
    for token in compiler._vocab.tokenize(text, False, False):
        if matcher.is_finished or not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return not matcher.is_unfinished


@pytest.mark.parametrize(
    ("family", "good", "bad"),
    [
        ("qwen3", ["12", "<think>hm 3</think>\n\n12"], ["<think>hm</think>", "<think>12", "hm 12"]),
        ("qwq", ["hm 3</think>\n\n12", "</think>12"], ["12", "hm</think>x"]),
        (
            "gpt-oss",
            ["<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>12"],
            ["12"],
        ),
        ("command-r7b", ["<|START_RESPONSE|>12<|END_RESPONSE|>"], ["12"]),
    ],
)
def test_a_schema_applies_behind_the_thoughts(compiler, family, good, bad):
    chat_format = ChatFormat(ChatTemplate(load(family)))
    chat = Chat(parse_messages([{"role": "user", "content": "hi"}]), schema={"type": "integer"})
    grammar = chat_format.bind(chat, chat_format.render(chat), lambda _: None).grammar
    assert [text for text in good if not accepts(compiler, grammar, text)] == []
    assert [text for text in bad if accepts(compiler, grammar, text)] == []


def test_a_grammar_is_compiled_once(compiler):
    one = schema({"type": "string", "maxLength": 3})
    compiler.compile(one)
    n = len(compiler._cache)
    first, second = compiler.compile(one), compiler.compile(one)
    assert len(compiler._cache) == n
    feed(first, compiler._vocab, '"a')
    assert second.allowed().tolist() == compiler.compile(one).allowed().tolist()


def test_compiled_grammars_are_kept_up_to_a_limit(compiler, monkeypatch):
    monkeypatch.setattr("corral.llama.constraint.CACHE_BYTES", 3000)
    compiler = Compiler(compiler._vocab)
    for i in range(60):
        compiler.compile(schema({"type": "string", "maxLength": i + 50}))
    assert sum(len(text) for _, text in compiler._cache) <= 3000
    assert len(compiler._cache) > 5


@on("llama-bpe")
def test_a_grammar_nothing_can_follow_is_a_400(model):
    with LlamaHarness(model) as bench:
        bench.run(task(0, bench.prompt(10), constraint=schema({"not": {}})))
        (failed,) = bench.of(0, Failed)
        assert status_of(failed) == 400


@on("default")
@pytest.mark.parametrize(
    ("grammar", "pattern", "is_forced"),
    [
        ('root ::= "The answer is: " ("yes" | "no") "."', r"The answer is: (yes|no)\.", True),
        ('root ::= a a\na ::= "so much " | "so little "', r"(so (much|little) ){2}", True),
        ('root ::= "(" root ")" | "end of the line"', r"\(*(end of the line\)*)?", False),
        ('root ::= "endless " root', r"(endless )*\w* ?", False),
    ],
)
def test_text_of_a_grammar_without_a_choice_is_forced_unless_rules_recur(model, grammar, pattern, is_forced):
    with LlamaHarness(model, n_parallel=2, n_threads=2) as bench:
        constraint = Constraint(kind="gbnf", text=grammar, field="grammar")
        bench.run(*(task(i, bench.prompt(9), seeded(HOT, i), 40, constraint=constraint) for i in range(4)))
        for i in range(4):
            assert re.fullmatch(pattern, bench.text(i)) or bench.done(i).truncated_grammar
            assert (bench.done(i).timings.forced_n > 0) is is_forced


def write_words_and_bytes(path) -> None:
    """A vocabulary without a token for a space: libllama tokenizes one as the three bytes of U+2581."""
    words = [f"▁w{i}" for i in range(40)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]

    def fill(writer) -> None:
        writer.add_vocab_size(len(tokens))
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + [-1.0 - i for i in range(len(words))])
        kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *([TokenType.BYTE] * 256)]
        writer.add_token_types(kinds + [TokenType.NORMAL] * len(words))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    write_file(path, "llama", fill)


@pytest.mark.parametrize("seed", range(5))
def test_what_the_mask_allows_is_accepted_whatever_the_vocabulary(tmp_path, seed):
    write_words_and_bytes(tmp_path / "words.gguf")
    model = Model.open(str(tmp_path / "words.gguf"), vocab_only=True)
    matcher = Compiler(model.vocab).compile(schema(PERSON))
    random = np.random.default_rng(seed)
    text = b""
    while not matcher.is_finished:
        token = (matcher.forced() or [int(random.choice(np.flatnonzero(matcher.allowed())))])[0]
        matcher.accept(token)
        text += model.vocab.piece(token)
    assert list(json.loads(text)) == ["name", "age", "tags"]
    model.close()
