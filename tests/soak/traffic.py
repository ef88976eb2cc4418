"""Clients of all kinds: they ask for what is known, look around, move states, send rubbish, and leave early.

Every answer is judged here, against what the calm server said or what that kind of request may get. Knows
nothing of what else goes on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.soak.case import Case, Choices, begins, has_error
from tests.soak.score import Score
from tests.soak.wire import POLITE, Manner, Received, Wire, encode

N_SLOTS = 3
MAX_BODY_MIB = 1
TEXTS = ["hello world", "the ring and the letter", "it was not you", "to be in the world"]
TOKENIZED = "hello world, that is the ring"
VECTOR_TOLERANCE = 1e-4
GIVEN_UP = "the engine died"  # too often on one request: refused, not lost


@dataclass(frozen=True, slots=True)
class Known:
    """What the calm server said."""

    cases: list[Case]
    answers: dict[str, Choices]
    vectors: list[list[float]]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class RecordMiddleware:
    """`ask` sends one request of some kind and judges the answer; for any number of clients at once."""

    address: tuple[str, int]
    known: Known
    score: Score

    async def ask(self, wire: Wire, rng: random.Random) -> None:
        kind: Callable[[Wire, random.Random], Any] = rng.choices(
            [self._complete, self._look, self._embed, self._tokenize, self._move_state, self._annoy],
            weights=[66, 8, 4, 4, 8, 10],
        )[0]
        await kind(wire, rng)

    async def _complete(self, wire: Wire, rng: random.Random) -> None:
        case = rng.choice(self.known.cases)
        manner = _some_manner(rng)
        if manner.reads_slowly and rng.random() < 0.5:
            case = max(self.known.cases, key=lambda one: int(one.body.get("n_predict", 0)))
        body = {**case.body, "stream": manner.reads_slowly or rng.random() < 0.6}
        if rng.random() < 0.1 and case.n == 1:
            body["id_slot"] = rng.randrange(N_SLOTS)
        received = await wire.exchange(encode("POST", case.path, body), manner)
        self._judge(case, received, manner)

    def _judge(self, case: Case, received: Received, manner: Manner) -> None:
        score, known = self.score, self.known.answers[case.name]
        score.status("completion", received.status)
        if received.has_left:
            score.count("left before the end")
            self._judge_part(case, received, known)
        elif received.status == 503 or (received.status == 500 and GIVEN_UP in received.body.decode()):
            score.count("refused: given up" if received.status == 500 else "refused: unavailable")
            score.expect(b'"error"' in received.body, f"{case.name}: {received.status} without a reason")
            score.expect(received.status == 500, f"{case.name}: {bytes(received.body)!r}")
        elif received.status != 200:
            score.blame(f"{case.name}: {received.status} {bytes(received.body)[:300]!r}")
        elif not received.is_complete:
            score.count("slow readers cut off" if manner.reads_slowly else "broken off")
            score.expect(manner.reads_slowly, f"{case.name}: broken off by the server")
            self._judge_part(case, received, known)
        elif received.is_stream and (error := has_error(received.events())):
            score.expect(GIVEN_UP in error, f"{case.name}: {error}")
            score.count("refused: given up")
        else:
            score.count("slow readers answered" if manner.reads_slowly else "answered")
            score.count("tokens compared", sum(len(choice.tokens) for choice in known))
            score.expect(not received.n_extra, f"{case.name}: {received.n_extra} bytes behind the answer")
            if (seen := case.read(received)) != known:
                score.blame(f"{case.name}: {_difference(seen, known)}")

    def _judge_part(self, case: Case, received: Received, known: Choices) -> None:
        if received.status != 200 or not received.is_stream:
            return
        seen = case.read(received)
        self.score.count("tokens compared", sum(len(choice.tokens) for choice in seen))
        self.score.expect(begins(seen, known), f"{case.name}, cut: {_difference(seen, known)}")

    async def _look(self, wire: Wire, rng: random.Random) -> None:
        path = rng.choice(
            ["/health", "/metrics", "/slots", "/props", "/v1/models", "/sessions", "/openapi.json"]
        )
        received = await wire.exchange(encode("GET", path))
        self._allow("look", received, {200, 503}, path)

    async def _embed(self, wire: Wire, rng: random.Random) -> None:
        picked = rng.sample(range(len(TEXTS)), rng.randint(1, len(TEXTS)))
        body = {"input": [TEXTS[i] for i in picked]}
        manner = _some_manner(rng, streams=False)
        received = await wire.exchange(encode("POST", "/v1/embeddings", body), manner)
        if received.has_left or not self._allow("embedding", received, {200}, "/v1/embeddings"):
            return
        vectors = [entry["embedding"] for entry in received.json()["data"]]
        wanted = [self.known.vectors[i] for i in picked]
        close = np.allclose(vectors, wanted, rtol=0, atol=VECTOR_TOLERANCE)
        self.score.expect(bool(close), f"vectors of {picked} are others than alone")
        self.score.count("vectors compared", len(vectors))

    async def _tokenize(self, wire: Wire, rng: random.Random) -> None:
        if rng.random() < 0.5:
            received = await wire.exchange(encode("POST", "/tokenize", {"content": TOKENIZED}))
            wanted: Mapping[str, Any] = {"tokens": self.known.tokens}
        else:
            received = await wire.exchange(encode("POST", "/detokenize", {"tokens": self.known.tokens}))
            wanted = dict.fromkeys(("content", "prompt"), TOKENIZED)
        if self._allow("tokens", received, {200}, "/tokenize"):
            self.score.expect(received.json() == wanted, f"tokens: {bytes(received.body)[:300]!r}")

    async def _move_state(self, wire: Wire, rng: random.Random) -> None:
        slot, other, name = rng.randrange(N_SLOTS), rng.randrange(N_SLOTS), rng.choice("abcd")
        wait = rng.choice(["", "&wait=0"])
        path, body = rng.choice(
            [
                (f"/slots/{slot}?action=save{wait}", {"filename": name}),
                (f"/slots/{slot}?action=restore{wait}", {"filename": name}),
                (f"/slots/{slot}?action=erase{wait}", {}),
                (f"/slots/{slot}?action=save-state{wait}", {}),
                (f"/slots/{slot}?action=fork&slot={other}{wait}", {}),
                (f"/slots/{slot}?action=tokens{wait}", {}),
                (f"/sessions/{name}?action=save&slot={slot}{wait}", {}),
                (f"/sessions/{name}?action=restore&slot={slot}{wait}", {}),
                (f"/sessions/{name}?action=fork&slot={slot}&to={rng.choice('xyz')}{wait}", {}),
                (f"/sessions/{rng.choice('abcdxyz')}?action=remove", {}),
            ]
        )
        received = await wire.exchange(encode("POST", path, body), _some_manner(rng, streams=False))
        if not received.has_left:
            self._allow("state", received, {200, 400, 404, 409, 503}, path)

    async def _annoy(self, wire: Wire, rng: random.Random) -> None:
        name, request, allowed = rng.choice(_NUISANCES)
        received = await wire.exchange(request)
        if 0 in allowed:  # what follows would be taken for a part of it
            wire.close()
        self._allow(f"hostile: {name}", received, allowed, name)

    def _allow(self, kind: str, received: Received, allowed: set[int], what: str) -> bool:
        """Whether there is an answer to look at. No answer is allowed by a 0."""
        self.score.status(kind, received.status)
        text = bytes(received.body[:300])
        fits = received.status in allowed and (received.is_complete or not received.status)
        self.score.expect(fits, f"{kind}: {what}: {received.status} {text!r}")
        if received.status >= 400 and received.is_complete:
            shaped = received.headers.get("content-type", "").startswith("application/json")
            self.score.expect(shaped or 0 in allowed, f"{kind}: {what}: no reason but {text!r}")
        return fits and received.status == 200


def _some_manner(rng: random.Random, streams: bool = True) -> Manner:
    """Three of four stay to the end."""
    draw = rng.random()
    if draw < 0.75:
        return POLITE
    if draw < 0.78:
        return Manner(leaves_after_bytes=rng.randrange(400))
    if draw < 0.82:
        return Manner(leaves_after_s=rng.uniform(0, 0.01))
    if draw < 0.87:
        return Manner(leaves_after_s=rng.uniform(0, 0.5))
    if not streams:
        return POLITE
    if draw < 0.96:
        return Manner(leaves_after_events=rng.randrange(12))
    return Manner(reads_slowly=True, leaves_after_s=rng.choice([-1.0, -1.0, rng.uniform(0, 3)]))


def _difference(seen: Choices, known: Choices) -> str:
    for i, (ours, theirs) in enumerate(zip(seen, known, strict=False)):
        if ours != theirs:
            return f"answer {i} is {replace(ours, text=ours.text[:300])}, alone it was {theirs}"
    return f"{len(seen)} answers, alone there were {len(known)}"


def _post(body: bytes | dict[str, Any], path: str = "/completion") -> bytes:
    return encode("POST", path, body)


_PROMPT = {"prompt": "hello", "n_predict": 4}
_DEEP = b'{"prompt": ' + b"[" * 50_000
_LARGE = json.dumps({"prompt": "x" * (2 << 20)}).encode()
_CHUNKED = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKS = (b"10000\r\n" + b" " * 65536 + b"\r\n") * 20
_NUISANCES: list[tuple[str, bytes, set[int]]] = [
    ("broken JSON", _post(b'{"prompt": "hello'), {400}),
    ("no JSON", _post(b"\xff\xfe\x00"), {400}),
    ("deep JSON", _post(_DEEP), {400}),
    ("a number for a prompt", _post({"prompt": 7.5}), {400}),
    ("NaN", _post(b'{"prompt": "hello", "temperature": NaN}'), {400}),
    ("a negative n_discard", _post({**_PROMPT, "n_discard": -5}), {200, 400}),
    ("an unknown field", _post({**_PROMPT, "no_such_field": 1}), {200}),
    ("a prompt too long", _post({**_PROMPT, "prompt": "hello world " * 2000}), {400}),
    ("tokens that are none", _post({**_PROMPT, "prompt": [1, 10**9]}), {400}),
    ("a broken grammar", _post({**_PROMPT, "grammar": "root ::= ("}), {400}),
    ("a deep grammar", _post({**_PROMPT, "grammar": "root ::= " + "(" * 60_000}), {400}),
    ("no such slot", _post({**_PROMPT, "id_slot": 99}), {400, 404}),
    ("no such route", _post(_PROMPT, "/none"), {404}),
    ("another method", encode("DELETE", "/completion"), {405}),
    ("a name that leads out", _post({"filename": "../x"}, "/slots/0?action=save"), {400, 503}),
    ("rubbish for a state", _post({"state": "QUJD"}, "/slots/0?action=restore-state"), {400, 503}),
    ("no messages", _post({"messages": []}, "/v1/chat/completions"), {400}),
    ("a body too large", _post(_LARGE), {413, 0}),
    ("chunks without end", _CHUNKED + _CHUNKS, {413, 0}),
    ("no HTTP", b"hello\r\n\r\n", {400, 0}),
    ("endless headers", b"GET /health HTTP/1.1\r\n" + b"X-A: " + b"a" * 200_000 + b"\r\n\r\n", {400, 431, 0}),
]


async def learn(address: tuple[str, int], cases: list[Case], score: Score) -> Known:
    """What the server says while nobody else is there, twice, the second time as streams."""
    wire, answers = Wire(address), {}
    for case in cases:
        received = await wire.exchange(encode("POST", case.path, case.body))
        assert received.status == 200, (case.name, bytes(received.body))
        answers[case.name] = case.read(received)
        streamed = await wire.exchange(encode("POST", case.path, {**case.body, "stream": True}))
        score.expect(case.read(streamed) == answers[case.name], f"{case.name}: another answer as a stream")
    embedded = await wire.exchange(encode("POST", "/v1/embeddings", {"input": TEXTS}))
    tokenized = await wire.exchange(encode("POST", "/tokenize", {"content": TOKENIZED}))
    wire.close()
    vectors = [entry["embedding"] for entry in embedded.json()["data"]]
    return Known(cases, answers, vectors, tokenized.json()["tokens"])


async def drive(traffic: RecordMiddleware, n: int, n_clients: int, seed: str, patience_s: float) -> None:
    """Have so many clients ask so many requests in all; one that is never answered is a problem."""
    left = iter(range(n))

    async def client(number: int) -> None:
        wire, rng = Wire(traffic.address), random.Random(f"{seed} {number}")
        try:
            for _ in left:
                traffic.score.count("requests")
                await asyncio.wait_for(traffic.ask(wire, rng), patience_s)
        except asyncio.TimeoutError:
            traffic.score.blame(f"a request was not answered within {patience_s:g} s")
        finally:
            wire.close()

    await asyncio.gather(*(client(number) for number in range(n_clients)))
