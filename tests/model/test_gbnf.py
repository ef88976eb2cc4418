"""GBNF on llguidance: the texts of the grammar are accepted, and no others."""

from __future__ import annotations

import itertools
import warnings

import llguidance.llamacpp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from corral.cli.default_model import find_default_model
from corral.core.errors import InvalidRequest
from corral.grammar.gbnf import gbnf_to_lark
from corral.llama import library
from corral.llama.candidates import Candidates
from corral.llama.library import lib
from corral.llama.model import Model
from tests.model.gbnf_reference import Reader, grammars

few_examples = settings(max_examples=150, deadline=None, derandomize=True, database=None)


class Tokenizer:
    """The default model's vocabulary, with a token for each byte of a text."""

    def __init__(self, vocab):
        self.vocab = vocab
        with warnings.catch_warnings():
            # llguidance asks for a token's kind by a deprecated name.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.native = llguidance.llamacpp.lltokenizer_from_vocab(vocab.handle)
        pieces = {vocab.piece(token): token for token in reversed(range(vocab.n_tokens))}
        self.byte = {piece[0]: token for piece, token in pieces.items() if len(piece) == 1}

        # The tokens that are text, in whole characters and not NUL.
        self.whole = {token for piece, token in pieces.items() if piece.strip(b"\0") and is_utf8(piece)}

    def matcher(self, grammar):
        lark = gbnf_to_lark(grammar, self.token_of, end_tokens=self.vocab.eog_tokens)
        limits = LLParserLimits(step_max_items=1_000_000)
        matcher = LLMatcher(self.native, LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
        return matcher

    def token_of(self, text):
        tokens = self.vocab.tokenize(text, False, True)
        return tokens[0] if len(tokens) == 1 else None

    def bytes_of(self, text):
        return [self.byte[byte] for byte in text.encode()]

    def tokens_of(self, text):
        return self.vocab.tokenize(text, False, False)


def is_utf8(piece):
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False


@pytest.fixture(scope="module")
def tokenizer():
    library.start(False)
    path = find_default_model()
    assert path is not None, "`make install` brings the default model"
    model = Model.open(str(path), vocab_only=True)
    yield Tokenizer(model.vocab)
    model.close()


def allowed(matcher):
    mask = matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()
    return {
        byte * 8 + bit for byte, value in enumerate(mask) if value for bit in range(8) if value >> bit & 1
    }


def accepts(matcher, tokens):
    """Whether the tokens are a whole text of the grammar, from its start."""
    matcher.reset()
    taken = matcher.try_consume_tokens(tokens)
    assert not matcher.is_error(), matcher.get_error()
    return taken == len(tokens) and matcher.is_accepting()


def accepts_step_by_step(matcher, tokens):
    """The same, each token looked up in the mask before it is taken."""
    matcher.reset()
    for token in tokens:
        mask = allowed(matcher)
        assert mask, "a dead end"
        assert (token in mask) == (matcher.validate_tokens([token]) == 1)
        if token not in mask:
            return False
        assert matcher.consume_token(token)
    return matcher.is_accepting()


WS = "ws ::= [ \\t\\n]*\n"
JSON = (
    r"""
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (
    value
    ("," ws value)*
)? "]" ws
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
"""
    + WS
)
ARITHMETIC = (
    r"""
root ::= (sum "=" ws term "\n")+
sum ::= term ([-+*/] ws term)*
term ::= name | digits | "(" ws sum ")" ws
name ::= [a-z] [a-z0-9_]* ws
digits ::= [0-9]+ ws
"""
    + WS
)
CODE = r"""
root ::= function*
function ::= type name "(" (type name)? ")" block
block ::= "{" gap? statement* "}" gap?
statement ::= (
    type name gap? "=" gap? sum ";" |
    name gap? "=" gap? sum ";" |
    "return" gap sum ";" |
    "if" "(" sum [<>] sum ")" block ("else" block)? |
    "//" [^\n]* "\n" |
    "/*" ([^*] | "*" [^/])* "*/"
) gap?
type ::= ("int" | "char") gap
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
sum ::= factor ([-+] factor)*
factor ::= name | [0-9]+ | "-" factor | name "(" (sum ("," gap? sum)*)? ")" | "(" sum ")"
gap ::= [ \t\n]+
"""
CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | piece | "O-O" "-O"?) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
"""
MARKUP = """
root ::= "<" name ">" (text | root)* "</" name ">"
name ::= [a-z]+
text ::= [^<>]+
"""
# An identifier may begin like a keyword, and nothing need separate the two.
KEYWORDS = 'root ::= "if" ws root | "do" root "od" | [a-z]+ ";" | "(" root ")"\n' + WS

SAMPLES = {
    "regular": (
        r'root ::= "a" [b-d]{2,3} ("\u00e9" | .)?',
        ["abb", "abcd", "adddé", "abb🤗"],
        ["ab", "abbbbb"],
    ),
    "greedy": ('root ::= [a-z]+ "foo" root? | "("', ["xfoo", "foofoo", "xfooyfoo", "xfoo("], ["foo", "fooo"]),
    "empty": ('root ::= "" | x "" | "(" root ")"\nx ::= "a"?', ["", "a", "()", "((a))"], ["b", "(", "(aa)"]),
    "counted": (
        'root ::= ("(" root ")" | "a"){2,3} | "b"',
        ["aa", "a(b)", "(b)(aaa)a"],
        ["a", "aaaa", "(a)a"],
    ),
    "unused": ('root ::= "a" | "b" root\nx ::= "c"', ["a", "bba"], ["c", ""]),
    "arithmetic": (
        ARITHMETIC,
        ["a=1\n", "x1+ (2*y_2 ) =  z \n\n", "a=b\nc-1=d\n"],
        ["a=1", "a b=1\n", "(a=1\n"],
    ),
    "list": (
        'root ::= ("- " [^\\n\\x0b\\u2028]+ "\\n")+',
        ["- a\n", "- é 🤗\n- - b\n"],
        ["", "- \n", "- a", "a\n"],
    ),
    "json": (
        "root ::= object\n" + JSON,
        [
            "{}",
            '{"a":1}',
            '{ "a" : [ 1 , -2.5e+7, "\\u00e9\\"", {}, [] ],\n\t"é":null}\n',
            '{"a":"","b":true}',
        ],
        ["", "[]", "{", '{"a"}', '{"a":01}', '{"a":1,}', '{"a":"\n"}', '{"a":"\\x"}', "{} {}", '{"a":tru}'],
    ),
    "json array": (
        'root ::= "[\\n" (value (",\\n" value)*)? "]"\n' + JSON,
        ["[\n]", '[\n1,\n"a",\n{"b" : [1,2]} ]'],
        ["[]", "[\n1,2]", "[\n1]\n", "[\n1,\n]"],
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 Nbd2\n", "1. exd5+ O-O\n23. a8=Q# O-O-O\n"],
        ["1. e4 e5\n", "1. e9 e5\n"],
    ),
    "japanese": (
        "root ::= char+ ([ \\n] char+)*\nchar ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾] | [一-鿿]",
        ["これは", "日本語、カタカナ 漢字\nです"],
        ["", " これ", "abc", "これ  は", "これ "],
    ),
    "nested japanese": (
        'root ::= "「" ([ぁ-ん]+ | root | "、")+ "」"',
        ["「あ、い「う」え」", "「、」"],
        ["「」", "「あ"],
    ),
    "code": (
        CODE,
        [
            "",
            "int main(){}",
            "int f(char a){ int x = 1+f(y,2); x=-3-(x);return x;}",
            "char g(){if(a<1){return 2;}else{/* a * b */}// c\n}\nint h(){}",
        ],
        ["int main()", "intmain(){}", "int f(){return1;}", "int f(){x = ;}", "int f(){/* a }"],
    ),
    "markup": (MARKUP, ["<a></a>", "<a>some text<b>bold</b> more</b>"], ["<a>", "<a></a>x", "<a>></a>"]),
    "keywords": (
        KEYWORDS,
        ["if;", "ifif;", "if x;", "doif;od", "dodox;odod", "(if\n(do;))"],
        ["if", "if x", "do;o"],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(tokenizer, name):
    grammar, accepted, refused = SAMPLES[name]
    matcher = tokenizer.matcher(grammar)
    for text, expected in [(text, True) for text in accepted] + [(text, False) for text in refused]:
        assert accepts(matcher, tokenizer.bytes_of(text)) == expected, text
        assert accepts_step_by_step(matcher, tokenizer.tokens_of(text)) == expected, text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_masks_are_those_of_libllama(tokenizer, name):
    """Its grammar sampler is stricter with half characters, and never allows NUL."""
    grammar, (*_, text), _ = SAMPLES[name]
    vocab, matcher = tokenizer.vocab, tokenizer.matcher(grammar)
    candidates = Candidates(vocab.n_tokens)
    sampler = lib.llama_sampler_init_grammar(vocab.handle, grammar.encode(), b"root")
    assert sampler
    for n, token in enumerate(tokenizer.tokens_of(text)):
        if n % 4 == 0:
            candidates.load(np.zeros(vocab.n_tokens, np.float32))
            lib.llama_sampler_apply(sampler, candidates.pointer)
            native = set(candidates.ids[candidates.logits == 0].tolist())
            assert allowed(matcher) & tokenizer.whole == native & tokenizer.whole
        assert matcher.consume_token(token)
        lib.llama_sampler_accept(sampler, token)
    lib.llama_sampler_free(sampler)


def test_a_grammar_without_an_end_goes_on(tokenizer):
    matcher = tokenizer.matcher('root ::= "ab" x\nx ::= "cd" root')
    for token in tokenizer.bytes_of("abcd" * 3):
        assert token in allowed(matcher)
        assert matcher.consume_token(token)
        assert not matcher.is_accepting()


def test_the_deepest_grammars_compile(tokenizer):
    nested = "root ::= " + '("a" | "b" root ' * 100 + ")?" * 100
    assert accepts(tokenizer.matcher(nested), tokenizer.bytes_of("bab"))
    chain = "".join(f'r{i} ::= "a" r{i + 1} "b"\n' for i in range(240)) + 'r240 ::= "c" root "d" | "e"'
    assert accepts(
        tokenizer.matcher("root ::= r0\n" + chain), tokenizer.bytes_of("a" * 240 + "e" + "b" * 240)
    )


@pytest.fixture
def named(tokenizer):
    """Tokens by their text: two control tokens and some that are text."""
    names = ["<|im_start|>", "<|endoftext|>", "the", "a", "ab"]
    return {name: tokenizer.token_of(name) for name in names}


def test_tokens(tokenizer, named):
    start, the, a, ab = (named[name] for name in ("<|im_start|>", "the", "a", "ab"))
    matcher = tokenizer.matcher(f'root ::= <|im_start|> !<[{the}]>* <[{the}]> "a" .*')
    assert accepts_step_by_step(matcher, [start, the, a])
    assert accepts_step_by_step(matcher, [start, a, ab, start, the, ab, the])
    assert not accepts_step_by_step(matcher, [the, a])
    assert not accepts_step_by_step(matcher, [start, the, the])
    assert not accepts(matcher, [start, *tokenizer.bytes_of("thea")])


def test_no_negated_token_ends_a_generation(tokenizer, named):
    matcher = tokenizer.matcher(f"root ::= !<[{named['the']}]> !<|endoftext|>")
    expected = set(range(tokenizer.vocab.n_tokens)) - tokenizer.vocab.eog_tokens
    assert allowed(matcher) == expected - {named["the"]}
    assert matcher.consume_token(named["a"])
    assert allowed(matcher) == expected


def test_token_sets_may_overlap(tokenizer, named):
    the, a, ab = (named[name] for name in ("the", "a", "ab"))
    matcher = tokenizer.matcher(f'root ::= <[{the}]> "x" | !<[{a}]> "y" | !<[{ab}]> <[{a}]>+')
    words = {(the, "x"): True, (the, "y"): True, (ab, "x"): False, (ab, "y"): True, (a, "x"): False}
    for (token, text), expected in words.items():
        assert accepts(matcher, [token, *tokenizer.bytes_of(text)]) == expected
    assert accepts(matcher, [the, a, a])
    assert accepts(matcher, [a, a])
    assert not accepts(matcher, [ab, a])


def check_exactness(tokenizer, alphabet, rules, long_words):
    grammar = "\n".join(f"{name} ::= {node.gbnf()}" for name, node in rules.items())
    try:
        matcher = tokenizer.matcher(grammar)
    except InvalidRequest as error:
        assume("left-recursive" not in error.message)
        raise
    words = ["".join(word) for n in range(5) for word in itertools.product(alphabet, repeat=n)]
    for word in words + long_words:
        expected = Reader(rules, word).accepts()
        assert accepts(matcher, tokenizer.bytes_of(word)) == expected, (word, grammar)
    for word in long_words[:1]:
        accepts_step_by_step(matcher, tokenizer.bytes_of(word))


@given(rules=grammars("abc"), long_words=st.lists(st.text("abc", min_size=5, max_size=8), max_size=5))
@few_examples
def test_random_grammars_are_exact(tokenizer, rules, long_words):
    check_exactness(tokenizer, "abc", rules, long_words)


@given(rules=grammars("ぁあ一"), long_words=st.lists(st.text("ぁあ一", min_size=5, max_size=8), max_size=5))
@few_examples
def test_random_grammars_are_exact_where_characters_share_bytes(tokenizer, rules, long_words):
    check_exactness(tokenizer, "ぁあ一", rules, long_words)
