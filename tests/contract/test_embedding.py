"""`POST /embedding`, `/rerank`, `/classify`, and what else they are called."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.embed import FLOAT_CHARS
from corral.core.chunk import DecodeStatus
from corral.core.errors import CorralError
from corral.core.pooling import Pooling
from corral.core.settings import EngineSettings, Settings
from corral.schema.embedding import ClassifyRequest, EmbeddingRequest, RerankRequest
from tests.contract.inline import Server
from tests.contract.wire import json_values
from tests.tools.examples import examples
from tests.unit.fake import EOG, LETTERS, FakeBackend, FakeEncoder

N_MOST = 256  # tokens of the fake's longest input
NATIVE = ("/embedding", "/embeddings")
OPENAI = "/v1/embeddings"
RERANK = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
CLASSIFY = ("/classify", "/v1/classify")
SECONDS = 120


class Judge(FakeEncoder):
    """Its scores are the sums of an input's tokens, so that documents differ."""

    def _vector(self, chunk):
        return np.array([[chunk.tokens.sum()]], np.float32)


def embedding_server(pooling=Pooling.MEAN, server=None, **encoder) -> Server:
    return Server(FakeBackend(encoder=FakeEncoder(pooling, **encoder)), **(server or {}))


def ranking_server(**encoder) -> Server:
    return Server(FakeBackend(encoder=Judge(Pooling.RANK, **encoder)))


@pytest.fixture
def server():
    return embedding_server()


async def post(server: Server, path: str, status: Any = 200, **body: Any):
    response = await server.http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def refused(server: Server, path: str, status: Any = 400, **body: Any) -> dict:
    error = (await post(server, path, status, **body))["error"]
    kinds = {400: "invalid_request_error", 501: "not_supported_error", 500: "server_error"}
    assert (error["code"], error["type"]) == (status, kinds[status])
    return error


def tokens_of(text: str) -> list[int]:
    return [1 + LETTERS.index(letter) for letter in text]


def rows_of(tokens: list[int]) -> np.ndarray:
    """What the fake makes of tokens."""
    return np.array([[1, token, i, token**2] for i, token in enumerate(tokens)], np.float64)


def vector_of(tokens: list[int], p: int = 2, n: int = 4) -> np.ndarray:
    mean = rows_of(tokens).mean(axis=0)[:n]
    return mean / np.linalg.norm(mean, ord=p) if p > 0 else mean


def is_close(row, expected) -> bool:
    return len(row) == len(expected) and np.allclose(row, expected, rtol=1e-5)


def evaluated(server: Server) -> list[list[int]]:
    """The inputs that were evaluated."""
    return [chunk.tokens.tolist() for batch in server.backend.encoder.batches for chunk in batch]


# --- of Text Embeddings Inference


async def test_embed_returns_nothing_but_vectors(server):
    one = await post(server, "/embed", inputs="ab")
    assert [is_close(row, vector_of(AB)) for row in one] == [True]
    two = await post(server, "/embed", inputs=["ab", CDE], normalize=False, truncate=True)
    assert [is_close(row, vector_of(tokens, -1)) for row, tokens in zip(two, (AB, CDE), strict=True)] == [
        True
    ] * 2
    (short,) = await post(server, "/embed", inputs="ab", dimensions=2)
    assert is_close(short, vector_of(AB, n=2))
    for body in (
        {"dimensions": 99},
        {"prompt_name": "query"},
        {"truncate": True, "truncation_direction": "left"},
    ):
        error = await refused(server, "/embed", inputs="ab", **body)
        assert error["param"] in body


# --- shapes


AB, CDE = tokens_of("ab"), tokens_of("cde")
PARTS: dict[str, Any] = {"content": [{"type": "text", "text": "c"}, {"type": "text", "text": "de"}]}
SHAPES = [
    ("ab", [AB]),
    (["ab", "cde"], [AB, CDE]),
    (["ab"], [AB]),
    (AB, [AB]),
    ([AB], [AB]),
    ([AB, CDE], [AB, CDE]),
    ([3, "bc", 6], [[3, *tokens_of("bc"), 6]]),
    ([["a", 4], "cde", CDE], [AB, CDE, CDE]),
    ({"prompt_string": "ab"}, [AB]),
    ([{"prompt_string": "ab"}, {"prompt_string": CDE}], [AB, CDE]),
    (PARTS, [CDE]),
    (["ab", PARTS], [AB, CDE]),
]


@pytest.mark.parametrize(("value", "expected"), SHAPES)
@pytest.mark.parametrize("field", ["input", "content"])
@pytest.mark.parametrize("path", NATIVE)
async def test_inputs_of_every_shape(server, path, field, value, expected):
    answer = await post(server, path, **{field: value})
    assert [sorted(item) for item in answer] == [["embedding", "index"]] * len(expected)
    assert [item["index"] for item in answer] == list(range(len(expected)))
    for item, tokens in zip(answer, expected, strict=True):
        (row,) = item["embedding"]
        assert is_close(row, vector_of(tokens))


@pytest.mark.parametrize(("value", "expected"), SHAPES)
async def test_openais_shape(server, value, expected):
    answer = await post(server, OPENAI, input=value, model="mine", user="me")
    data = answer.pop("data")
    n = sum(map(len, expected))
    usage = {"prompt_tokens": n, "total_tokens": n}
    assert answer == {"object": "list", "model": "mine", "usage": usage}
    for i, (item, tokens) in enumerate(zip(data, expected, strict=True)):
        assert is_close(item.pop("embedding"), vector_of(tokens))
        assert item == {"index": i, "object": "embedding"}


async def test_content_is_answered_in_the_native_shape_anywhere(server):
    body = {"content": ["ab", "cde"]}
    assert await post(server, OPENAI, **body) == await post(server, "/embedding", **body)
    assert isinstance(await post(server, OPENAI, input="ab", content="cde"), dict)


async def test_the_model_has_the_servers_name_unless_it_is_told_otherwise():
    named = embedding_server(server={"alias": "tall"})
    assert (await post(named, OPENAI, input="ab"))["model"] == "tall"


async def test_unknown_fields_are_reported(server):
    answer = await post(server, OPENAI, input="ab", nonsense=1)
    assert answer["warnings"] == ["Field 'nonsense' is unknown and was ignored"]


async def test_answers_come_in_the_order_of_the_inputs(server):
    dice = random.Random(1)
    inputs = [[dice.randrange(64) for _ in range(dice.randint(1, 120))] for _ in range(100)]
    data = (await post(server, OPENAI, input=inputs))["data"]
    assert [item["index"] for item in data] == list(range(100))
    for item, tokens in zip(data, inputs, strict=True):
        assert is_close(item["embedding"], vector_of(tokens))
    assert not server.backend.encoder.sequences


async def test_requests_that_come_together_share_batches(server):
    server.engine.is_paused = True
    requests = [asyncio.create_task(post(server, OPENAI, input=text)) for text in ("ab", "cde", "f")]
    await until(lambda: server.engine.n_tasks == 3)
    server.engine.is_paused = False
    answers = await asyncio.gather(*requests)
    assert [len(batch) for batch in server.backend.encoder.batches] == [3]
    for answer, text in zip(answers, ("ab", "cde", "f"), strict=True):
        assert is_close(answer["data"][0]["embedding"], vector_of(tokens_of(text)))


# --- options


@pytest.mark.parametrize("dimensions", [None, 3])
async def test_base64_holds_the_same_numbers(server, dimensions):
    body = {"input": ["ab", "cde"], "dimensions": dimensions}
    plain = await post(server, OPENAI, **body, encoding_format="float")
    coded = await post(server, OPENAI, **body, encoding_format="base64")
    native = await post(server, "/embedding", **body, encoding_format="base64")
    for a, b, c in zip(plain["data"], coded["data"], native, strict=True):
        assert b["encoding_format"] == "base64"
        assert c["embedding"] == [b["embedding"]]
        numbers = np.frombuffer(base64.b64decode(b["embedding"]), "<f4")
        assert (numbers == np.array(a["embedding"], np.float32)).all()


@pytest.mark.parametrize("n", [1, 3, 4, 2.0])
async def test_dimensions_are_cut_and_normalized_again(server, n):
    (item,) = (await post(server, OPENAI, input="cde", dimensions=n))["data"]
    assert is_close(item["embedding"], vector_of(CDE, n=int(n)))


@pytest.mark.parametrize("default", [-1, 2, 3])
@pytest.mark.parametrize("p", [None, -1, 1, 2, 3])
async def test_vectors_are_normalized_as_the_request_or_the_server_says(default, p):
    server = embedding_server(server={"embd_normalize": default})
    ((row,),) = [item["embedding"] for item in await post(server, "/embedding", input="ab", embd_normalize=p)]
    assert is_close(row, vector_of(AB, default if p is None else p))


async def test_the_largest_number_can_be_the_norm(server):
    (item,) = (await post(server, OPENAI, input="ab", embd_normalize=0))["data"]
    assert max(item["embedding"]) == 32760


@pytest.mark.parametrize("options", [{}, {"embd_normalize": 2}])
async def test_without_pooling_there_is_a_row_for_each_token_as_it_is(options):
    server = embedding_server(Pooling.NONE)
    long = [3 + i % 40 for i in range(100)]
    answer = await post(server, "/embedding", input=["ab", long, "c"], **options)
    for item, tokens in zip(answer, (AB, long, tokens_of("c")), strict=True):
        assert item["embedding"] == rows_of(tokens).tolist()
    (item,) = await post(server, "/embedding", input="ab", dimensions=2, **options)
    assert item["embedding"] == rows_of(AB)[:, :2].tolist()
    error = await refused(server, OPENAI, input="ab")
    assert "'none'" in error["message"]
    assert len(await post(server, OPENAI, content="ab")) == 1


@pytest.mark.parametrize(("pooling", "n"), [(Pooling.CLS, 0), (Pooling.LAST, -1)])
async def test_one_token_can_speak_for_all(pooling, n):
    server = embedding_server(pooling)
    ((row,),) = [
        item["embedding"]
        for item in await post(server, "/embedding", input=[5] * 90 + [6], embd_normalize=-1)
    ]
    assert row == rows_of([5] * 90 + [6])[n].tolist()


async def test_a_model_that_ranks_shows_its_scores_but_not_to_openai():
    server = embedding_server(Pooling.RANK, labels=["x", "y"])
    (item,) = await post(server, "/embedding", input="ab")
    assert item["embedding"] == [[4.0, 1.0]]
    assert "--pooling" in (await refused(server, OPENAI, 501, input="ab"))["message"]


# --- errors


@pytest.mark.parametrize("path", [*NATIVE, OPENAI])
@pytest.mark.parametrize("field", ["input", "content"])
@pytest.mark.parametrize(
    ("value", "index", "words"),
    [
        ([], "", "must not be empty"),
        ("", "", "cannot be empty"),
        (["ab", ""], "[1]", "cannot be empty"),
        (["ab", []], "[1]", "cannot be empty"),
        ({"prompt_string": ""}, "", "cannot be empty"),
        ({"content": []}, "", "cannot be empty"),
        (5, "", "invalid token|must be a string"),
        (True, "", "must be a string"),
        ({}, "", "must be a string"),
        ({"prompt_string": 5}, "", "must be a string"),
        (["a", "b", "c", None], "[3]", "must be a string"),
        (["a", "b", "c", True, "d"], "[3]", "must be a string"),
        (["a", "b", [1], {"prompt": "x"}], "[3]", "must be a string"),
        (["a", "b", "c", [1, [2]]], "[3]", "invalid token"),
        (["a", "b", "c", [1, 1.5]], "[3]", "invalid token"),
        (["a", [5, 64]], "[1]", "invalid token: 64 (ids go from 0 to 63)"),
        (["a", [5, -1]], "[1]", "invalid token: -1 (ids go from 0 to 63)"),
        ([5, 64], "", "invalid token: 64 (ids go from 0 to 63)"),
        ([2**70], "", "invalid token"),
        (["a", {"content": [{"type": "text"}]}], "[1]", "'text'"),
        (["a", {"content": ["text"]}], "[1]", "'text'"),
    ],
)
async def test_what_is_wrong_with_an_input_is_named(server, path, field, value, index, words):
    error = await refused(server, path, **{field: value})
    assert error["param"] == field + index
    assert any(word in error["message"] for word in words.split("|"))
    assert not server.engine.n_tasks


@pytest.mark.parametrize("path", [*NATIVE, OPENAI])
@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": None, "content": None}, {"prompt": "ab"}])
async def test_there_has_to_be_an_input(server, path, body):
    error = await refused(server, path, **body)
    assert '"input" or "content" must be provided' in error["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"dimensions": 5},
        {"dimensions": 0},
        {"dimensions": 1.5},
        {"dimensions": "2"},
        {"embd_normalize": -2},
        {"embd_normalize": 1025},
        {"encoding_format": "float16"},
        {"truncate": 1},
        {"model": 3},
        {"image_data": "x"},
    ],
)
async def test_options_out_of_range_are_refused(server, change):
    error = await refused(server, OPENAI, **{"input": "ab", **change})
    assert error["param"] == next(iter(change))


async def test_bodies_that_are_no_object(server):
    for content in (b"", b"{", b"[]", b'"ab"', b'{"input": NaN}'):
        for path in ("/embedding", OPENAI):
            assert (await server.http.post(path, content=content)).status_code == 400


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "input_video"])
async def test_what_is_no_text_needs_a_projector(server, kind):
    error = await refused(server, OPENAI, 400, input=["a", {"content": [{"type": kind, kind: {}}]}])
    assert (error["param"].split(".")[0], kind in error["message"]) == ("input[1]", True)
    await refused(server, OPENAI, 400, input={"prompt_string": "a", "multimodal_data": ["x"]})
    error = await refused(server, "/embedding", 400, content="a", image_data=[{"data": "", "id": 1}])
    assert error["param"] == "image_data[0].data"


@pytest.mark.parametrize("value", ["a" * 300, [5] * 300, ["a", *[5] * 299]])
@pytest.mark.parametrize("is_list", [False, True])
async def test_what_is_too_long_is_refused_with_numbers(server, value, is_list):
    error = await refused(server, OPENAI, input=["ab", value] if is_list else value)
    assert error["param"] == ("input[1]" if is_list else "input")
    assert (error["n_prompt_tokens"], error["n_max_tokens"]) == (300, N_MOST)
    assert all(word in error["message"] for word in ("300 tokens", "256 tokens", '"truncate": true'))


async def test_a_text_that_cannot_fit_is_not_even_tokenized(server):
    server.backend.vocab.tokenize = lambda *args, **options: pytest.fail("tokenized")
    error = await refused(server, OPENAI, input=["a" * 1_000_000])
    assert error["param"] == "input[0]"
    assert "1000000 characters" in error["message"]


@pytest.mark.parametrize(("n_ctx", "is_batch"), [(512, True), (256, False)])
async def test_the_batch_is_named_where_it_is_what_limits(n_ctx, is_batch):
    server = embedding_server(is_whole=True, n_batch=256, n_ctx=n_ctx)
    error = await refused(server, OPENAI, input="a" * 300)
    assert ("--ubatch-size" in error["message"]) == is_batch


async def test_an_input_as_long_as_can_be(server):
    (item,) = (await post(server, OPENAI, input=[5] * N_MOST, truncate=True))["data"]
    assert "truncated" not in item


@pytest.mark.parametrize("n", [N_MOST + 1, 300, 100_000])
@pytest.mark.parametrize("path", ["/embedding", OPENAI])
async def test_what_is_too_long_is_cut_on_request(server, path, n):
    ended = [5] * (n - 1) + [EOG]
    answer = await post(server, path, input=["ab", "a" * n, ended], truncate=True)
    data = answer if isinstance(answer, list) else answer["data"]
    assert ["truncated" in item for item in data] == [False, True, True]
    assert data[1]["truncated"] is True
    expected = [AB, tokens_of("a" * N_MOST), [5] * (N_MOST - 1) + [EOG]]
    for item, tokens in zip(data, expected, strict=True):
        row = item["embedding"] if path == OPENAI else item["embedding"][0]
        assert is_close(row, vector_of(tokens))
    if path == OPENAI:
        assert answer["usage"]["prompt_tokens"] == 2 + 2 * N_MOST


async def test_a_text_that_is_cut_before_it_is_tokenized_was_cut(server):
    server.backend.vocab.tokenize = lambda text, *args, **options: [5] * (len(text) // 128)
    (item,) = (await post(server, OPENAI, input="a" * 128 * 2 * N_MOST, truncate=True))["data"]
    assert item.get("truncated") is True


def bounded(server: Server, n_numbers: int) -> Server:
    # No option is as small.
    object.__setattr__(server.services.prepare, "max_response_bytes", n_numbers * FLOAT_CHARS)
    return server


async def test_answers_have_a_size(server):
    bounded(server, 12)
    assert len((await post(server, OPENAI, input=["a"] * 3))["data"]) == 3
    error = await refused(server, OPENAI, input=["a"] * 4)
    assert error["param"] == "input"
    assert all(word in error["message"] for word in ("4 vectors", "4 values", "the limit is 3"))
    tokenwise = bounded(embedding_server(Pooling.NONE), 12)
    assert len(await post(tokenwise, "/embedding", content="abc")) == 1
    for value in ("abcd", ["ab", "cd"]):
        assert (await refused(tokenwise, "/embedding", content=value))["param"] == "content"
    ranks = bounded(ranking_server(), 12)
    error = await refused(ranks, "/rerank", query="a", documents=["b"] * 4)
    assert error["param"] == "documents"


async def test_numbers_that_are_none_are_an_error(server):
    server.backend.encoder._vector = lambda chunk: np.full((1, 4), np.inf if len(chunk.tokens) == 2 else 1.0)
    error = await refused(server, OPENAI, 500, input=["a", "ab", "abc"])
    assert "input 1" in error["message"]


@pytest.mark.parametrize("trouble", [CorralError("boom"), DecodeStatus.NO_ROOM])
async def test_what_goes_wrong_in_the_engine_is_told(server, trouble):
    server.backend.encoder.statuses = [trouble]
    error = await refused(server, OPENAI, 500, input="ab")
    assert ("boom" if isinstance(trouble, CorralError) else "no room") in error["message"]
    assert (await post(server, OPENAI, input="ab"))["data"]


ROUTES = [*NATIVE, OPENAI, *RERANK, *CLASSIFY]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("has_info", [False, True])
async def test_everything_says_so_while_the_model_loads(path, has_info):
    backend = FakeBackend(
        encoder=FakeEncoder(Pooling.RANK if path in (*RERANK, *CLASSIFY) else Pooling.MEAN, labels=["x", "y"])
    )
    server = Server(backend, is_open=False)
    if not has_info:
        server.engine.info = None
    answer = await post(server, path, 503, input="a", inputs="a", query="a", documents=["b"])
    error = answer["error"]
    assert (error["code"], error["message"], error["type"]) == (503, "Loading model", "unavailable_error")


MODELS: dict[str, Any] = dict.fromkeys((*NATIVE, OPENAI), EmbeddingRequest)
MODELS |= {"/rerank": RerankRequest, "/classify": ClassifyRequest}
bodies = st.sampled_from(sorted(MODELS)).flatmap(
    lambda path: st.tuples(
        st.just(path),
        st.dictionaries(st.sampled_from(sorted(MODELS[path].model_fields)), json_values, max_size=5),
    )
)


@given(bodies, st.sampled_from(list(Pooling)))
@examples(100)
def test_no_body_gives_a_server_error(request_, pooling):
    path, body = request_

    async def send() -> httpx.Response:
        return await embedding_server(pooling, labels=["x", "y"]).http.post(path, json={"query": "a", **body})

    assert asyncio.run(send()).status_code in (200, 400, 501)


# --- servers that only embed


def refit(server: Server, **changes) -> None:
    """As if another model had been loaded."""
    info = server.engine.info
    encoder = {name: changes.pop(name) for name in list(changes) if hasattr(info.encoder, name)}
    engine: Any = server.services.engine
    engine.info = msgspec.structs.replace(
        info, **changes, encoder=msgspec.structs.replace(info.encoder, **encoder)
    )


@pytest.mark.parametrize(
    "path", ["/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions"]
)
@pytest.mark.parametrize(
    ("option", "words"), [({}, "only computes embeddings"), ({"embedding": True}, "`--embeddings`")]
)
async def test_a_server_that_only_embeds_generates_nothing(path, option, words):
    settings = Settings(engine=EngineSettings(model="fake.gguf", **option))
    server = Server(FakeBackend(encoder=FakeEncoder(Pooling.MEAN)), settings=settings)
    refit(server, can_generate=False)
    error = await refused(
        server, path, 501, prompt="a", messages=[{"role": "user", "content": "a"}], n_predict=1
    )
    assert words in error["message"]
    assert (await post(server, OPENAI, input="ab"))["data"]
    assert (await post(server, "/tokenize", content="ab"))["tokens"] == AB


# --- reranking


DOCUMENTS = ["b", "zz", "", "b", "c d"]
ORDER = [1, 4, 0, 3, 2]


def score_of(query: str, document: str) -> float:
    return float(sum(tokens_of(query + document)))


@pytest.mark.parametrize("path", RERANK)
async def test_jinas_shape(path):
    answer = await post(ranking_server(), path, query="ab", documents=DOCUMENTS, model="mine")
    n = sum(len("ab" + document) + 2 for document in DOCUMENTS)
    assert answer == {
        "model": "mine",
        "object": "list",
        "usage": {"prompt_tokens": n, "total_tokens": n},
        "results": [{"index": i, "relevance_score": score_of("ab", DOCUMENTS[i])} for i in ORDER],
    }


@pytest.mark.parametrize("path", RERANK)
async def test_teis_shape(path):
    answer = await post(ranking_server(), path, query="ab", texts=DOCUMENTS, documents=["x"])
    assert answer == [{"index": i, "score": score_of("ab", DOCUMENTS[i])} for i in ORDER]


async def test_a_query_and_a_document_are_a_pair():
    server = ranking_server()
    await post(server, "/rerank", query="ab", documents=["cde"])
    assert evaluated(server) == [[*AB, EOG, *CDE, EOG]]


@pytest.mark.parametrize(("top_n", "n"), [(None, 5), (0, 0), (2, 2), (5, 5), (99, 5)])
@pytest.mark.parametrize("field", ["documents", "texts"])
async def test_only_the_best_are_returned(field, top_n, n):
    answer = await post(ranking_server(), "/rerank", query="a", top_n=top_n, **{field: DOCUMENTS})
    results = answer["results"] if field == "documents" else answer
    assert [result["index"] for result in results] == ORDER[:n]


async def test_documents_come_back_on_request():
    server = ranking_server()
    body = {"query": "a", "documents": ["b", {"text": "c", "id": 7}], "top_n": 1}
    (result,) = (await post(server, "/rerank", **body, return_documents=True))["results"]
    assert result == {"index": 1, "relevance_score": score_of("a", "c"), "document": {"text": "c"}}
    (result,) = (await post(server, "/rerank", **body, return_text=True))["results"]
    assert "document" not in result
    (result,) = await post(server, "/rerank", query="a", texts=["b"], return_text=True)
    assert result == {"index": 0, "score": score_of("a", "b"), "text": "b"}
    (result,) = await post(server, "/rerank", query="a", texts=["b"], return_documents=True)
    assert "text" not in result


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": None, "documents": ["a"]}, "query"),
        ({"query": 5, "documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "documents": "b"}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ({"query": "a", "documents": ["b", {"text": 5}]}, "documents[1]"),
        ({"query": "a", "documents": ["b", {}]}, "documents[1]"),
        ({"query": "a", "documents": [1, 2]}, "documents[0]"),
        ({"query": "a", "documents": ["b", None]}, "documents[1]"),
        ({"query": "a", "texts": ["b", "c", 3]}, "texts[2]"),
    ],
)
async def test_what_is_wrong_with_a_reranking_is_named(body, param):
    error = await refused(ranking_server(), "/rerank", **body)
    assert error["param"] == param


@pytest.mark.parametrize("path", RERANK)
async def test_only_a_model_that_ranks_reranks(server, path):
    body = {"query": "a", "documents": ["b"]}
    assert "`--reranking`" in (await refused(server, path, 501, **body))["message"]
    headless = ranking_server()
    refit(headless, has_head=False)
    assert "no head" in (await refused(headless, path, 501, **body))["message"]
    assert "no head" in (await refused(headless, "/embedding", 501, input="a"))["message"]


async def test_a_template_is_filled_in_in_one_pass():
    server = ranking_server()
    server.services.model.rerank_template = "Q:{query} D:{document}"
    await post(server, "/rerank", query="a{document}", documents=["b{query}", "c"])
    texts = [server.backend.vocab.detokenize(tokens) for tokens in evaluated(server)]
    assert sorted(texts) == sorted(["Q:a document  D:b query ", "Q:a document  D:c"]), (
        "braces are blank to the fake"
    )


@pytest.mark.parametrize("template", ["", "Q:{query} D:{document}!"])
async def test_documents_that_are_too_long_are_cut_on_request(template):
    server = ranking_server(n_batch=512)
    server.services.model.rerank_template = template
    body = {"query": "ab", "documents": ["c", "d" * 300]}
    error = await refused(server, "/rerank", **body)
    around = len(template.replace("{query}", "ab").replace("{document}", "")) if template else 4
    assert (error["param"], error["n_prompt_tokens"], error["n_max_tokens"]) == (
        "documents[1]",
        300 + around,
        N_MOST,
    )
    assert '"truncate": true' in error["message"]
    assert not evaluated(server)
    results = (await post(server, "/rerank", **body, truncate=True))["results"]
    assert {result["index"]: result.get("truncated") for result in results} == {0: None, 1: True}
    long = max(evaluated(server), key=len)
    assert len(long) == N_MOST
    if template:
        assert server.backend.vocab.detokenize(long) == "Q:ab D:" + "d" * (N_MOST - around) + "!"
    else:
        assert long == [*AB, EOG, *tokens_of("d" * (N_MOST - around)), EOG]


@pytest.mark.parametrize("template", ["", "Q:{query} D:{document}!"])
@pytest.mark.parametrize("n", [N_MOST, 100_000])
async def test_a_query_is_never_cut(template, n):
    server = ranking_server()
    server.services.model.rerank_template = template
    error = await refused(server, "/rerank", query="a" * n, documents=["b"], truncate=True)
    assert error["param"] == "query"


# --- classification


@pytest.mark.parametrize("path", CLASSIFY)
async def test_labels_come_best_first(path):
    server = embedding_server(Pooling.RANK, labels=["self", "place", "square"])
    one = [
        {"label": "square", "score": 16.0},
        {"label": "self", "score": 4.0},
        {"label": "place", "score": 1.0},
    ]
    other = [
        {"label": "place", "score": 2.0},
        {"label": "self", "score": 1.0},
        {"label": "square", "score": 1.0},
    ]
    for inputs in ("ab", AB):
        answer = await post(server, path, inputs=inputs)
        assert answer == {
            "model": "fake.gguf",
            "object": "list",
            "usage": {"prompt_tokens": 2, "total_tokens": 2},
            "predictions": one,
        }
    assert (await post(server, path, inputs=["ab"]))["predictions"] == [one]
    assert (await post(server, path, inputs=["ab", "aa "]))["predictions"] == [one, other]
    long = (await post(server, path, inputs=["ab", "a" * 300], truncate=True))["predictions"]
    assert [["truncated" in item for item in items] for items in long] == [[False] * 3, [True] * 3]


@pytest.mark.parametrize("inputs", [[], "", ["ab", 5.5, "x"], ["ab", True], 5, ["ab", "a" * 300]])
async def test_what_is_wrong_with_a_classification_is_named(inputs):
    server = embedding_server(Pooling.RANK, labels=["x", "y"])
    assert (await refused(server, "/classify", inputs=inputs))["param"].startswith("inputs")
    assert (await refused(server, "/classify"))["param"] == "inputs"


@pytest.mark.parametrize("path", CLASSIFY)
async def test_only_a_model_that_tells_classes_apart_classifies(server, path):
    assert "`--reranking`" in (await refused(server, path, 501, inputs="a"))["message"]
    assert "one output" in (await refused(ranking_server(), path, 501, inputs="a"))["message"]
    headless = embedding_server(Pooling.RANK, labels=["x", "y"])
    refit(headless, has_head=False)
    assert "no head" in (await refused(headless, path, 501, inputs="a"))["message"]


# --- clients that leave


async def until(is_so) -> None:
    async def wait() -> None:
        while not is_so():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), SECONDS)


@pytest.mark.parametrize("n_steps", [0, 1, 3])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (OPENAI, {"input": ["a" * 200, "ab"]}),
        ("/rerank", {"query": "a", "documents": ["a" * 200, "b"]}),
        ("/classify", {"inputs": ["a" * 200, "ab"]}),
    ],
)
async def test_a_client_that_leaves_takes_its_order_along(path, body, n_steps):
    server = embedding_server(Pooling.MEAN if path == OPENAI else Pooling.RANK, labels=["x", "y"])
    server.engine.is_paused = True
    leaves, sent, parts = asyncio.Event(), [], [json.dumps(body).encode()]

    async def receive():
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "server": ("corral", 80), "client": ("test", 1),
    }  # fmt: skip
    answer = asyncio.ensure_future(server.app(scope, receive, send))
    await until(lambda: server.engine.n_tasks)
    for _ in range(n_steps):
        server.engine.step()
    assert not answer.done()
    assert server.engine.has_work
    leaves.set()
    await asyncio.wait_for(answer, SECONDS)
    assert [message["status"] for message in sent if "status" in message] == [499]
    assert (server.engine.n_tasks, server.engine.has_work) == (0, False)
    assert not server.backend.encoder.sequences
