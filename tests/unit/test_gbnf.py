"""GBNF is read as llama.cpp reads it, and refused with the place and the reason."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from corral.core.errors import InvalidRequest
from corral.grammar.gbnf import gbnf_to_lark, parser
from corral.grammar.gbnf import lark as writer

TOKENS = {"<think>": 7, "</think>": 8, "<eos>": 2}
RECURSIVE = 'root ::= "(" root ")" | '


def lark(text, **options):
    return gbnf_to_lark(text, TOKENS.get, **options)


def terminals(text):
    """The regular expressions of the terminals, as Python writes them."""
    found = re.findall(r"^T\d+: /(.*)/$", lark(text), re.M)
    return [re.sub(r"\\x\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", regex) for regex in found]


def refusal(text, **options):
    with pytest.raises(InvalidRequest) as caught:
        lark(text, **options)
    assert caught.value.status == 400
    return caught.value.message


REGULAR = {
    "literal": ('root ::= "ab"', ["ab"], ["", "a", "abb"]),
    "escapes": (r'root ::= "\x41\u0042\U00000043\n\r\t\\\"\[\]\-"', ['ABC\n\r\t\\"[]-'], ["ABC"]),
    "class": ("root ::= [a-cx]", ["a", "b", "c", "x"], ["d", "", "ab"]),
    "negated class": (r"root ::= [^a-c\n]", ["d", "é", "🤗"], ["a", "b", "c", "\n"]),
    "class escapes": (r"root ::= [\x30-\x39\]\[\\\-\u00e9]", [*"059][\\-é"], ["x", "a"]),
    "dashes": ("root ::= [-a] [b-] [+-]", ["-b+", "a--"], ["ab_", "a,+"]),
    "quotes in a class": ("root ::= [\"'#|]", ['"', "'", "#", "|"], ["\\"]),
    "surrogates fall out": (r"root ::= [\uD7FF-\uE000]", ["\ud7ff", "\ue000"], ["\ud801", "a"]),
    "any": ("root ::= . .", ["ab", "\n🤗", "é\x00"], ["a", ""]),
    "alternatives": ('root ::= "a" | "bc" | ', ["a", "bc", ""], ["b", "abc"]),
    "empty first": ('root ::= | "a"', ["", "a"], ["aa"]),
    "empty literal": ('root ::= "" "a" ""', ["a"], ["", '"']),
    "empty rule": ("root ::=\n", [""], ["a"]),
    "group": ('root ::= ("a" | "b") "c"', ["ac", "bc"], ["a", "bcc"]),
    "star": ('root ::= "ab"*', ["", "ab", "abab"], ["aba"]),
    "plus": ("root ::= [ab]+", ["a", "ba"], ["", "c"]),
    "optional": ('root ::= "a"? "b"', ["b", "ab"], ["aab"]),
    "exactly": ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
    "at least": ('root ::= "a"{2,}', ["aa", "aaaa"], ["a"]),
    "between": ('root ::= "a"{1,2}', ["a", "aa"], ["", "aaa"]),
    "at most": ('root ::= "a"{0,2}', ["", "a", "aa"], ["aaa"]),
    "never": ('root ::= "a"{0} "b"{0,0} "c"', ["c"], ["ac", "bc"]),
    "spaced bounds": ('root ::= "a" { 1 , 2 } "b"', ["ab", "aab"], ["b", "aaab"]),
    "twice repeated": ('root ::= ("a"?)* "b"{2}*', ["", "aaabb", "bbbb"], ["b", "aba"]),
    "a space before": ('root ::= "a" * "b" ?', ["", "aab"], ["abb"]),
    "references": ('root ::= x-1 x-1\nx-1 ::= "a" | Y2\nY2 ::= [0-9]', ["a1", "11"], ["a", "a11"]),
    "no tail recursion": ('root ::= "a" root | "b" | "c" ("d" root)?', ["b", "aac", "cdab"], ["a", "cd"]),
    "comments": ('# one\nroot ::= "#" # two\n  # three\n\n', ["#"], ["", "# two"]),
    "newlines": ('root ::=\n ( "a"\n # x\n "b" |\r\n "c" ) |\n "d"\r\nx ::= "y"\n', ["ab", "c", "d"], ["a"]),
    "last definition": ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    "raw newline": ('root ::= "a\nb"', ["a\nb"], ["ab"]),
    "regular characters": (r'root ::= "a.*+?()[]{}|^$/\\" [.*/^$&~]', ["a.*+?()[]{}|^$/\\&"], ["aa"]),
}


@pytest.mark.parametrize("name", REGULAR)
def test_a_grammar_without_recursion_is_one_regular_expression(name):
    text, accepted, refused = REGULAR[name]
    regexes = terminals(text) or [""]
    assert len(regexes) == 1
    for word in accepted:
        assert re.fullmatch(regexes[0], word), word
    for word in refused:
        assert not re.fullmatch(regexes[0], word), word


ERRORS = {
    'root ::= "a': (1, 12, "unexpected end"),
    "root ::= [a": (1, 12, "unexpected end"),
    'root ::= ("a"': (1, 14, "expected ')'"),
    'root ::= "a")': (1, 13, "expected a newline or the end"),
    'root ::= "a" x ::= "b"': (1, 16, "expected a newline or the end"),
    'root = "a"': (1, 6, "expected '::='"),
    '\n  ::= "a"': (2, 3, "expected a rule name"),
    'root ::= "a"\n  | "b"': (2, 3, "expected a rule name"),
    r'root ::= "a\q"': (1, 12, "unknown escape"),
    r'root ::= "\x4"': (1, 13, "expected 2 hexadecimal digits"),
    r"root ::= [\u12]": (1, 13, "expected 4 hexadecimal digits"),
    r'root ::= "\U00110000"': (1, 11, "U+110000 is not a character"),
    r'root ::= "\ud800"': (1, 11, "U+D800 is not a character"),
    'root ::= "\ud800"': (1, 11, "U+D800 is not a character"),
    "root ::= []": (1, 10, "matches no character"),
    "root ::= [^]": (1, 10, "matches no character"),
    r"root ::= [\uD800-\uDFFF]": (1, 10, "matches no character"),
    "root ::= [a+-*]": (1, 12, "wrong order"),
    "root ::= *": (1, 10, "nothing before '*' to repeat"),
    'root ::= ""+': (1, 12, "nothing before '+' to repeat"),
    'root ::= "a" | ?': (1, 16, "nothing before '?' to repeat"),
    'root ::= "a"{}': (1, 14, "expected a number"),
    'root ::= "a"{,2}': (1, 14, "expected a number"),
    'root ::= "a"{1': (1, 15, "expected '}'"),
    'root ::= "a"{3,2}': (1, 13, "wrong order"),
    'root ::= "a"{2001}': (1, 14, "more than 2000"),
    'root ::= "a"{0,99999999999}': (1, 16, "more than 2000"),
    'root ::= ((("a"{100})? "b"){100} ){11}': (1, 35, "more than 100000"),
    'root ::= "a" | x\ny ::= x z': (1, 16, "rule 'x' is not defined"),
    'root ::= "a"\nx ::= "b" nope': (2, 11, "rule 'nope' is not defined"),
    'x ::= "b"': (None, None, "the rule 'root' is missing"),
    "": (None, None, "the rule 'root' is missing"),
    'root ::= root "a" | "b"': (1, 1, "'root' is left-recursive"),
    'root ::= "a"\nx ::= "b" | y\ny ::= x "c"': (2, 1, "'x' is left-recursive"),
    'root ::= ws root | "b"\nws ::= [ ]*': (1, 1, "'root' is left-recursive"),
    'root ::= ("" | "c")+ "d"{0} root': (1, 1, "'root' is left-recursive"),
    "root ::= x\nx ::= y x\ny ::= z z\nz ::= |": (2, 1, "'x' is left-recursive"),
    "root ::= <nope>": (1, 10, "<nope> is not a token"),
    "root ::= !<nope>": (1, 11, "<nope> is not a token"),
    "root ::= <think": (1, 10, "expected a token"),
    "root ::= <[12>": (1, 10, "expected a token"),
    "root ::= <[x]>": (1, 10, "expected a token"),
    "root ::= !x": (1, 11, "expected a token"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_a_refusal_says_where_and_why(text):
    line, column, reason = ERRORS[text]
    message = refusal(text)
    where = "" if line is None else f"line {line}, column {column}: "
    assert message.startswith(f"Failed to parse grammar: {where}")
    assert reason in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('root ::= "' + "a" * parser.MAX_TEXT_BYTES + '"', "bytes"),
        ("root ::= " + "é" * (parser.MAX_TEXT_BYTES // 2), "bytes"),
        ("".join(f"r{i} ::= [a]\n" for i in range(parser.MAX_RULES + 1)), "rules"),
        ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "nested"),
        ("root ::= " + "(" * 60_000, "nested"),
        ('root ::= "a"' + "?" * 60_000, "nested"),
        ("root ::= " + "(" * 80 + '"a"' + "??)" * 80, "nested"),
        (
            "root ::= r0\n"
            + "".join(f'r{i} ::= "a" r{i + 1} "b"\n' for i in range(2_000))
            + "r2000 ::= root",
            "nest",
        ),
    ],
)
def test_limits(text, reason):
    assert reason in refusal(text)


def test_what_is_within_the_limits_is_accepted():
    assert terminals("root ::= " + "(" * 100 + '"a"' + ")?" * 100)
    assert terminals('root ::= "a"' + "?" * 100)
    assert terminals('root ::= ("a"{2000}){50}')
    assert terminals("".join(f"r{i} ::= [a]\n" for i in range(1_000)) + "root ::= r1")
    deep = "root ::= " + '("a" | "b" root ' * 100 + ")?" * 100
    assert lark(deep).count("\n") > 10
    assert len(terminals('root ::= "' + "a" * 500_000 + '"')[0]) == 500_000


def test_rules_that_double_do_not_explode():
    doubling = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60 ::= "a"\n'
    assert len(lark("root ::= r0\n" + doubling)) < 10_000
    assert len(lark(RECURSIVE + "r0\n" + doubling)) < 10_000


def test_a_grammar_too_complex_to_analyse_is_in_single_characters(monkeypatch):
    monkeypatch.setattr(writer, "_ANALYSIS_STEPS", 0)
    text = RECURSIVE + '"ab" [c-d]*'
    assert terminals(text) == [r"\U00000028", r"\U00000029", "a", "b", "[c-d]"]
    monkeypatch.setattr(writer, "MAX_CHARACTERS", 4)
    assert "too complex" in refusal(text)


HIRAGANA = r"[\U00003041-\U00003093]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root ::= "x" root "y" | [a-w]+ "foo"', ["x", "y", "[a-w]+foo"]),
        ('root ::= "x" root "y" | [a-w]+ root "foo"', ["x", "y", "[a-w]", "foo"]),
        ('root ::= "x" ([a-w]+ | root)* "y"', ["x(?:[a-w]+)*", "(?:[a-w]+)*", "y"]),
        ('root ::= "x" ([a-w] root?)* "y"', ["x", "[a-w]", "y"]),
        ('root ::= "a" root "bc" | "ab" root "d" | "e"', ["a", "bc", "ab", "d", "e"]),
        ('root ::= "a" root? "bc" | "ab" root "d" | "e"', ["a", "bc", "b", "d", "e"]),
        ('root ::= "a" [ぁ-ん]+ root? "一"', [f"a{HIRAGANA}+", r"\U00004e00"]),
        ('root ::= "a" [ぁ-ん]+ root? "、"', ["a", HIRAGANA, r"\U00003001"]),
    ],
)
def test_a_terminal_is_as_large_as_greedy_matching_allows(text, expected):
    """The last two: the ideograph has a first byte of its own, the comma shares it with the kana."""
    assert sorted(terminals(text)) == sorted(expected)


def test_tokens():
    assert "r0: <[7]> (<[7]> | <[^7,8]>)* <[8]> T0\n" in lark("root ::= <think> !</think>* <[8]> .*")
    assert "r0: <[^5]>\n" in lark("root ::= !<[5]>")
    assert "r0: <[^2,5]>\n" in lark("root ::= !<[5]>", end_tokens={2})
    assert "r0: <[^2]>\n" in lark("root ::= !<eos>", end_tokens={2})
    assert "<eos> is an end-of-generation token" in refusal("root ::= <eos>", end_tokens={2})
    assert "<[10]> is not a token" in refusal("root ::= <[10]>", n_tokens=10)
    assert "r0: <[9]>\n" in lark("root ::= <[9]>", n_tokens=10)


def test_reading_a_grammar_needs_no_native_code():
    code = "import sys, corral.grammar.gbnf; sys.exit(bool({'llama_cpp', 'llguidance'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
