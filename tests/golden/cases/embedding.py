"""Vectors, scores and labels."""

from __future__ import annotations

from typing import Any

from tests.golden.case import Ask, Case, Model

_AS_THEY_ARE = {"embd_normalize": -1}
_RANKS, _LABELS = Model(pooling="rank"), Model(pooling="rank", labels=("good", "bad"))


def _post(path: str, **fields: Any) -> Ask:
    return Ask("POST", path, {"model": "m", **fields})


RANK = tuple(
    _post(path, query="a", documents=["b", "cc"])
    for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
)
CLASSIFY = tuple(_post(path, inputs=["a", "b"]) for path in ("/classify", "/v1/classify"))

CASES = [
    Case(
        "vectors",
        (
            _post("/v1/embeddings", input=["a", "bb"]),
            _post("/v1/embeddings", input="a", encoding_format="base64"),
            _post("/v1/embeddings", input=[5, 6]),
            _post("/embedding", content="a"),
            _post("/embeddings", content=["a", "b"]),
            _post("/embed", inputs=["a", "b"]),
            _post("/embed", inputs="a", normalize=False),
        ),
        Model(pooling="mean"),
        _AS_THEY_ARE,
    ),
    Case(
        "vectors of every token",
        (_post("/embedding", content="ab"), _post("/v1/embeddings", input="a")),
        Model(pooling="none"),
        _AS_THEY_ARE,
    ),
    Case(
        "wrong inputs",
        (
            _post("/v1/embeddings"),
            _post("/v1/embeddings", input=[]),
            _post("/embed", inputs=7),
            _post("/embedding", content="x" * 9000),
        ),
    ),
    Case("other methods", (Ask("GET", "/v1/embeddings"), Ask("HEAD", "/embed"), Ask("PUT", "/rerank"))),
    Case(
        "a model that does not exist",
        (Ask("POST", "/v1/embeddings", {"model": "x", "input": "a"}),),
        options=_AS_THEY_ARE,
    ),
    Case("ranks", RANK, _RANKS),
    Case(
        "the best rank",
        (_post("/rerank", query="a", documents=["b", "cc"], top_n=1), _post("/rerank", query="a")),
        _RANKS,
    ),
    Case("labels", CLASSIFY, _LABELS),
    Case("neither ranks nor labels", (*RANK, *CLASSIFY)),
]
