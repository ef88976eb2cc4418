"""GBNF grammars of requests, up to the first mask."""

from __future__ import annotations

from corral.core.errors import InvalidRequest
from corral.core.params import Constraint
from tests.fuzz.constraint import compile_constraint
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Limit, Target


def parse(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    compile_constraint(Constraint(kind="gbnf", text=text, field="grammar"))


SEEDS = [
    b'root ::= "yes" | "no"',
    b'root ::= object\nobject ::= "{" ws (pair ("," ws pair)*)? "}"\npair ::= string ":" ws value\n'
    b'value ::= object | string | [0-9]+\nstring ::= "\\"" [^"\\\\]* "\\""\nws ::= [ \\t\\n]{0,5}',
    b'root ::= (a | b){2,4} # comment\na ::= "x" ("y" a)?\nb ::= [a-z\\x41-\\u0050]+ "\\U0001f917"?',
    b"root ::= <a> !<a> <[7]> .*",
    'root ::= "é" [α-ω]{3} ("ä" root)?'.encode(),
]
WORDS = [b"root", b"::=", b"|", b"(", b")", b"*", b"+", b"?", b"{0,2000}", b"{,5}", b"[", b"]", b"[^", b'"']
WORDS += [b"\\x", b"\\U", b"\n", b"#", b"<[", b"]>", b"!<", b".", b"a ::= a", b"{1000}"]
LIMIT = Limit(cpu_s=10.0, mib=400.0)
TARGET = Target("gbnf", parse, SEEDS, mutated(SEEDS, WORDS), (InvalidRequest,), LIMIT)
