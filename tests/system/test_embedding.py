"""Embeddings, reranking and classification on the real command: real clients, hostile ones, lost engines."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest

from tests.model import bert_reference, decoder_reference
from tests.model.bert_reference import Array, unit
from tests.system.process import START_S, CorralProcess, Stream, wait_until
from tests.system.state import shell
from tests.tools import tiny_encoders as tiny_models

CLOSE = 1e-3
ONE_THREAD = ("-t", 1)  # two would wait for each other where something else runs
TOPICS: dict[str, Any] = {
    "weather": [
        "Heavy rain is expected in the north tomorrow.",
        "The storm brought strong winds and hail.",
        "It will be sunny and warm all weekend.",
        "Snow fell on the hills during the night.",
        "Thick fog delayed the morning, and the temperature dropped below freezing.",
    ],
    "cooking": [
        "Chop the onions and fry them in butter until golden.",
        "Bake the bread in a hot oven for forty minutes.",
        "The soup needs more salt and a little pepper.",
        "Whisk the eggs with sugar to make a light cake.",
        "Simmer the tomato sauce with garlic and basil.",
    ],
    "space": [
        "The rocket put a satellite into orbit around the Earth.",
        "Astronomers found a planet that circles a distant star.",
        "Astronauts spent six months aboard the space station.",
        "The telescope photographed a galaxy billions of light years away.",
        "A probe landed on Mars to look for traces of water.",
    ],
    "money": [
        "The central bank raised interest rates again.",
        "Shares fell sharply on the stock market today.",
        "She opened a savings account for her salary.",
        "Inflation makes the loan more expensive to pay back.",
        "Investors bought government bonds and sold their stocks.",
    ],
    "sport": [
        "The striker scored two goals in the second half.",
        "She won the tennis match in straight sets.",
        "The marathon runner crossed the finish line first.",
        "Our basketball team lost the final by one point.",
        "The coach praised the goalkeeper after the football game.",
    ],
}
QUERIES: dict[str, Any] = {
    "weather": ["Do I need an umbrella tomorrow?", "What is the forecast for the weekend?"],
    "cooking": ["What can I make for dinner?", "A recipe with vegetables"],
    "space": ["Have we been to other planets?", "NASA missions to the solar system"],
    "money": ["Should I invest my savings?", "How do banks and financial markets work?"],
    "sport": ["Who won the game?", "The players of the team trained for the championship"],
}
WORDS = "the weather is lovely today and people walk along a river while storms gather over old mountains"
LARGE = [" ".join(random.Random(i).choices(WORDS.split(), k=10)) for i in range(320)]


def act(server: CorralProcess, path: str, **body: object) -> Any:
    # Without certificates, which nobody needs here and which take long to load.
    response = httpx.post(server.url + path, json=body, timeout=START_S, verify=False)
    assert response.status_code == 200, (path, response.text)
    return response.json()


def vectors_of(answer: Any) -> Array:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.array([item["embedding"] for item in answer["data"]])


def embed(server: CorralProcess, texts: Sequence[str | Sequence[int]]) -> Array:
    return vectors_of(act(server, "/v1/embeddings", input=texts))


def tokenize(server: CorralProcess, text: str, add_special: bool = True) -> list[int]:
    return act(server, "/tokenize", content=text, add_special=add_special, parse_special=True)["tokens"]


def cpu_s(engine: psutil.Process) -> float:
    return sum(engine.cpu_times()[:2])


@pytest.fixture(scope="module")
def minilm(minilm_path):
    with CorralProcess("-m", minilm_path, *ONE_THREAD, "--alias", "minilm") as server:
        yield server


@pytest.fixture(scope="module")
def client(minilm):
    with openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(encoders):
    with CorralProcess("-m", encoders / "bert-embed.gguf", *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def classifier(encoders):
    with CorralProcess("-m", encoders / "bert-classify.gguf", "--reranking", *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def reranker(encoders):
    with CorralProcess("-m", encoders / "bert-rerank.gguf", "--reranking", *ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="module")
def judge(encoders):
    """A reranker that is a decoder with a prompt."""
    with CorralProcess("-m", encoders / "qwen3-rerank.gguf", "--reranking", *ONE_THREAD) as server:
        yield server


# A real model, and the `openai` package.


def test_the_openai_client_gets_vectors_of_anything_it_can_send(client, minilm):
    texts = TOPICS["space"][:3]
    several = client.embeddings.create(model="any", input=texts)
    assert (several.object, several.model) == ("list", "any")
    assert [item.index for item in several.data] == [0, 1, 2]
    assert {item.object for item in several.data} == {"embedding"}
    tokens = [tokenize(minilm, text) for text in texts]
    assert several.usage.prompt_tokens == several.usage.total_tokens == sum(map(len, tokens))
    vectors = np.array([item.embedding for item in several.data])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)
    one = client.embeddings.create(model="any", input=texts[1])
    ids = client.embeddings.create(model="any", input=tokens)
    flat = client.embeddings.create(model="any", input=tokens[2])
    assert one.data[0].embedding == pytest.approx(vectors[1], abs=CLOSE)
    assert np.array([item.embedding for item in ids.data]) == pytest.approx(vectors, abs=CLOSE)
    assert flat.data[0].embedding == pytest.approx(vectors[2], abs=CLOSE)


def test_the_native_route_has_room_for_rows(minilm):
    texts = TOPICS["sport"][:2]
    vectors = embed(minilm, texts)
    for path, field in [("/embedding", "content"), ("/embeddings", "input"), ("/v1/embeddings", "content")]:
        rows = act(minilm, path, **{field: texts})
        assert [item.keys() for item in rows] == [{"index", "embedding"}] * 2
        assert np.array([item["embedding"][0] for item in rows]) == pytest.approx(vectors, abs=CLOSE)
    raw = np.array(act(minilm, "/embedding", content=texts[0], embd_normalize=-1)[0]["embedding"])
    assert unit(raw[0]) == pytest.approx(vectors[0], abs=CLOSE)
    assert np.linalg.norm(raw) > 1.1


def test_numbers_and_their_bytes_are_the_same(client):
    def create(**options: Any) -> Any:
        return client.embeddings.create(model="any", input="Hello there", **options).data[0].embedding

    numbers, text = create(encoding_format="float"), create(encoding_format="base64")
    assert isinstance(text, str)
    assert np.array_equal(np.frombuffer(base64.b64decode(text, validate=True), "<f4"), np.float32(numbers))
    assert np.array_equal(np.float32(create()), np.float32(numbers))


def test_fewer_dimensions_are_the_first_ones_at_length_one(client):
    def create(**options: Any) -> Array:
        options = {"encoding_format": "float", **options}
        return np.array(client.embeddings.create(model="any", input="A b c", **options).data[0].embedding)

    assert create(dimensions=100) == pytest.approx(unit(create()[:100]), abs=1e-6)
    assert create(dimensions=384) == pytest.approx(create(), abs=1e-6)
    with pytest.raises(openai.BadRequestError, match="384"):
        create(dimensions=385)


def test_vectors_are_those_of_the_published_weights(minilm):
    original = bert_reference.read_original_minilm()
    texts = [text for topic in TOPICS.values() for text in topic[:4]]
    for text, vector in zip(texts, embed(minilm, texts), strict=True):
        expected = unit(bert_reference.token_rows(original, tokenize(minilm, text)).mean(axis=0))
        assert vector @ expected > 0.9999


def test_what_is_nearest_to_a_query_is_about_the_same(minilm):
    owners = [topic for topic, texts in TOPICS.items() for _ in texts]
    page = embed(minilm, [text for texts in TOPICS.values() for text in texts])
    for topic, queries in QUERIES.items():
        for query, vector in zip(queries, embed(minilm, queries), strict=True):
            nearest = [owners[i] for i in np.argsort(-(page @ vector))]
            assert nearest[0] == topic, query
            assert nearest[:5].count(topic) >= 3, (query, nearest)
    is_same = np.equal.outer(owners, owners)
    near, far = np.where(is_same, page @ page.T, np.nan), np.where(is_same, np.nan, page @ page.T)
    assert (np.nanmean(near, axis=1) > np.nanmax(far, axis=1)).mean() > 0.8
    assert (np.nanmean(near, axis=1) > 2 * np.nanmean(far, axis=1)).all()


def test_a_text_that_is_too_long_is_refused_with_the_numbers(minilm):
    text = "word " * 600
    n = len(tokenize(minilm, text))
    response = minilm.post("/v1/embeddings", input=["a", text])
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "input[1]")
    assert (error["n_prompt_tokens"], error["n_max_tokens"]) == (n, 512)
    assert f"({n} tokens) is too large" in error["message"]
    assert "512 tokens" in error["message"]
    assert "truncate" in error["message"]


def test_what_would_not_help_is_not_recommended(minilm):
    message = minilm.post("/v1/embeddings", input="word " * 600).json()["error"]["message"]
    assert "--ubatch-size" not in message


def test_the_command_line_chooses_pooling_and_norm(encoders):
    path = encoders / "bert-embed.gguf"
    with CorralProcess("-m", path, *ONE_THREAD, "--pooling", "cls", "--embd-normalize", 1) as server:
        (row,) = embed(server, ["the cat is in the house"])
        tokens = tokenize(server, "the cat is in the house")
    first = bert_reference.pool_cls(bert_reference.token_rows(bert_reference.read_bert(path), tokens))
    assert row == pytest.approx(first / np.abs(first).sum(), abs=CLOSE)


@pytest.mark.slow
def test_the_command_line_chooses_attention_and_no_pooling(encoders):
    options = ("-m", encoders / "llama-last.gguf", *ONE_THREAD, "--embeddings", "--pooling", "none")

    def first_rows(server: CorralProcess) -> Array:
        answers = act(server, "/embedding", content=["the cat", "the house of the king"])
        assert [len(item["embedding"]) for item in answers] == [
            len(tokenize(server, text)) for text in ("the cat", "the house of the king")
        ]
        return np.array([item["embedding"][0] for item in answers])

    with CorralProcess(*options) as server:
        causal = first_rows(server)
        assert server.post("/v1/embeddings", input="the cat").status_code == 400
    with CorralProcess(*options, "--attention", "non-causal") as server:
        seeing = first_rows(server)
    assert causal[0] == pytest.approx(causal[1], abs=1e-2)
    assert not np.allclose(seeing[0], seeing[1], atol=0.1)


def test_a_small_batch_is_named_as_the_reason(minilm_path):
    with CorralProcess("-m", minilm_path, *ONE_THREAD, "-ub", 64) as server:
        message = server.post("/v1/embeddings", input="word " * 100).json()["error"]["message"]
        assert "(102 tokens) is too large" in message
        assert "the limit is 64 tokens" in message
        assert "--ubatch-size" in message


def test_what_is_cut_is_what_fits(minilm):
    text = "river " * 600
    tokens = tokenize(minilm, text)
    answer = act(minilm, "/v1/embeddings", input=[text, "short"], truncate=True)
    assert [item.get("truncated") for item in answer["data"]] == [True, None]
    kept = [*tokens[:511], tokens[-1]]
    expected = act(minilm, "/v1/embeddings", input=[kept])
    assert vectors_of(answer)[:1] == pytest.approx(vectors_of(expected), abs=CLOSE)
    assert answer["usage"]["prompt_tokens"] == 512 + 3


# Classification, with the commands of the extensions' document as printed there.


def expected_classes(encoders, server: CorralProcess, text: str) -> list[tuple[str, float]]:
    bert = bert_reference.read_bert(encoders / "bert-classify.gguf")
    logits = bert_reference.class_logits(bert, tokenize(server, text))
    return sorted(zip(tiny_models.LABELS, logits, strict=True), key=lambda pair: -pair[1])


def assert_documented(answer: Any, server: CorralProcess, texts: Sequence[str]) -> None:
    n = sum(len(tokenize(server, text)) for text in texts)
    assert answer.keys() == {"model", "object", "usage", "predictions"}
    assert isinstance(answer["model"], str)
    assert answer["object"] == "list"
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}


def assert_classes(predictions: Any, expected: Sequence[tuple[str, float]]) -> None:
    assert all(prediction.keys() == {"label", "score"} for prediction in predictions)
    assert [prediction["label"] for prediction in predictions] == [label for label, _ in expected]
    scores = [prediction["score"] for prediction in predictions]
    assert scores == pytest.approx([score for _, score in expected], abs=CLOSE * max(map(abs, scores)))
    assert scores == sorted(scores, reverse=True)


def test_shell_classify_a_text(classifier, encoders, tmp_path):
    (answer,) = shell(
        classifier,
        """
curl -s http://localhost:8080/v1/classify \\
  -H "Content-Type: application/json" \\
  -d '{
    "inputs": "I love this product, it works great!"
  }' | jq .
""",
        tmp_path,
    )
    text = "I love this product, it works great!"
    assert_documented(answer, classifier, [text])
    assert_classes(answer["predictions"], expected_classes(encoders, classifier, text))


def test_shell_classify_a_batch(classifier, encoders, tmp_path):
    (answer,) = shell(
        classifier,
        """
curl -s http://localhost:8080/v1/classify \\
  -H "Content-Type: application/json" \\
  -d '{
    "inputs": [
      "I love this product!",
      "This is terrible, worst purchase ever.",
      "It is okay, nothing special."
    ]
  }' | jq .
""",
        tmp_path,
    )
    texts = [
        "I love this product!",
        "This is terrible, worst purchase ever.",
        "It is okay, nothing special.",
    ]
    assert_documented(answer, classifier, texts)
    assert len(answer["predictions"]) == 3
    for predictions, text in zip(answer["predictions"], texts, strict=True):
        assert_classes(predictions, expected_classes(encoders, classifier, text))
    same = act(classifier, "/classify", inputs=texts)
    assert same["predictions"] == answer["predictions"]


def test_one_text_in_a_list_is_a_list(classifier):
    alone = act(classifier, "/v1/classify", inputs="a good day")["predictions"]
    assert act(classifier, "/v1/classify", inputs=["a good day"])["predictions"] == [alone]


# Reranking.

QUERY = "What is the capital of France?"
DOCUMENTS = ["paris is the capital.", "the cat", "a river in the city of berlin", "hello world", "a"]


def assert_ranks(answer: Any, expected: Sequence[float], n: int | None = None) -> None:
    best = sorted(range(len(expected)), key=lambda i: -expected[i])[:n]
    assert [result["index"] for result in answer["results"]] == best
    scores = [result["relevance_score"] for result in answer["results"]]
    size = max(map(abs, expected))
    assert scores == pytest.approx([expected[i] for i in best], abs=CLOSE * size)


def pair_scores(encoders, server: CorralProcess, query: str, documents: Sequence[str]) -> list[float]:
    bert = bert_reference.read_bert(encoders / "bert-rerank.gguf")
    texts = [[tokenize(server, text, add_special=False) for text in (query, one)] for one in documents]
    pairs = [[tiny_models.CLS, *a, tiny_models.SEP, *b, tiny_models.SEP] for a, b in texts]
    return [float(bert_reference.class_logits(bert, tokens)[0]) for tokens in pairs]


def prompt_scores(encoders, server: CorralProcess, query: str, documents: Sequence[str]) -> list[float]:
    decoder = decoder_reference.read_decoder(encoders / "qwen3-rerank.gguf")
    prompts = [tiny_models.RERANK.format(query=query, document=document) for document in documents]
    inputs = [tokenize(server, prompt, add_special=False) for prompt in prompts]
    return [float(decoder_reference.class_probabilities(decoder, tokens)[0]) for tokens in inputs]


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_a_pair_of_texts_has_the_score_of_the_reference(reranker, encoders, path):
    expected = pair_scores(encoders, reranker, QUERY, DOCUMENTS)
    answer = act(reranker, path, query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert_ranks(answer, expected)
    for result in answer["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    assert_ranks(act(reranker, path, query=QUERY, documents=DOCUMENTS, top_n=2), expected, 2)


def test_texts_are_answered_as_text_embeddings_inference_does(reranker, encoders):
    expected = pair_scores(encoders, reranker, QUERY, DOCUMENTS)
    answer = act(reranker, "/rerank", query=QUERY, texts=DOCUMENTS, return_text=True)
    assert [item["index"] for item in answer] == sorted(range(5), key=lambda i: -expected[i])
    for item in answer:
        assert item.keys() == {"index", "score", "text"}
        assert item["text"] == DOCUMENTS[item["index"]]
        assert item["score"] == pytest.approx(expected[item["index"]], abs=CLOSE * max(map(abs, expected)))


def test_a_prompt_has_the_score_of_the_reference(judge, encoders):
    # What it keeps of the prompt is in half precision, which the reference is not.
    expected = prompt_scores(encoders, judge, QUERY, DOCUMENTS)
    answer = act(judge, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert len(answer["results"]) == len(DOCUMENTS)
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=5e-3)
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_a_document_cannot_bring_in_another_place_of_the_template(judge, encoders):
    documents = ["{query}", "{document}", "{document} {query}", "\\1 \\g<0>", ""]
    expected = prompt_scores(encoders, judge, "{document}", documents)
    answer = act(judge, "/v1/rerank", query="{document}", documents=documents)
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=5e-3)


def test_shell_rerank(judge, encoders, tmp_path):
    """The command of llama-server's document."""
    command = """
curl http://127.0.0.1:8012/v1/rerank \\
    -H "Content-Type: application/json" \\
    -d '{
        "model": "some-model",
            "query": "What is panda?",
            "top_n": 3,
            "documents": [
                "hi",
            "it is a bear",
            "The giant panda (Ailuropoda melanoleuca), sometimes called a panda bear or \
simply panda, is a bear species endemic to China."
            ]
    }' | jq
"""
    (answer,) = shell(judge, command.replace("127.0.0.1:8012", "localhost:8080"), tmp_path)
    assert answer.keys() == {"model", "object", "usage", "results"}
    assert (answer["model"], answer["object"]) == ("some-model", "list")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert {result["index"] for result in answer["results"]} == {0, 1, 2}
    assert all(result.keys() == {"index", "relevance_score"} for result in answer["results"])
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_a_server_that_does_not_rank_says_how_to_start_one_that_does(embedder, reranker):
    bodies: dict[str, dict[str, Any]] = {
        "/rerank": {"query": "a", "documents": ["b"]},
        "/classify": {"inputs": "a"},
    }
    for path, body in bodies.items():
        response = embedder.post(path, **body)
        assert response.status_code == 501
        assert "--reranking" in response.json()["error"]["message"]
    assert reranker.post("/classify", inputs="a").status_code == 501
    assert reranker.post("/v1/embeddings", input="a").status_code == 501


# A model that generates.


async def test_a_model_that_generates_embeds_meanwhile(corral):
    """No flag tells it to."""
    body = {"prompt": "Once upon a time", "n_predict": 32, "temperature": 0, "ignore_eos": True}
    alone = corral.complete(**body)["content"]
    texts = [text for texts in TOPICS.values() for text in texts if len(tokenize(corral, text)) > 8][:6]
    quiet = embed(corral, texts)
    assert quiet.shape == (6, 576)
    assert np.linalg.norm(quiet, axis=1) == pytest.approx(1.0)
    stream = Stream(corral.url, **body, cache_prompt=False)
    await stream.reach(2)
    async with httpx.AsyncClient(timeout=START_S) as http:
        question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
        vectors, chat = await asyncio.gather(
            http.post(f"{corral.url}/v1/embeddings", json={"input": texts}),
            http.post(f"{corral.url}/v1/chat/completions", json=question),
        )
    await stream.task
    assert stream.text == alone
    assert chat.json()["usage"]["completion_tokens"] == 4
    # Its weights are quantized: what is packed in another way is rounded in another way.
    assert (vectors_of(vectors.json()) * quiet).sum(axis=1).min() > 0.9999


@pytest.fixture(scope="module")
def only(tiny, tmp_path_factory):
    """A model that could generate, on a server that only embeds."""
    path = tmp_path_factory.mktemp("saves")
    with CorralProcess(
        "-m", tiny, "--embedding", "--slots", "--slot-save-path", path, "-np", 2, *ONE_THREAD
    ) as server:
        yield server


def test_a_server_that_only_embeds_refuses_to_generate(only):
    messages = [{"role": "user", "content": "hi"}]
    for path in ("/completion", "/completions", "/v1/completions"):
        assert_refused(only.post(path, prompt="hi"))
    for path in ("/chat/completions", "/v1/chat/completions"):
        assert_refused(only.post(path, messages=messages))
        assert_refused(only.post(path, messages=messages, stream=True))
    assert np.linalg.norm(embed(only, ["hello world"])) == pytest.approx(1.0)


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 501, response.text
    assert response.json()["error"]["type"] == "not_supported_error"
    assert "--embeddings" in response.json()["error"]["message"]


def test_a_server_that_only_embeds_answers_all_other_questions(only):
    assert only.get("/health").json()["status"] == "ok"
    assert only.get("/props").json()["total_slots"] == 2
    (model,) = only.get("/v1/models").json()["data"]
    assert model["meta"]["n_embd"] == 64
    assert len(only.get("/slots").json()) == 2
    assert tokenize(only, "hello")
    messages = [{"role": "user", "content": "hi"}]
    assert "hi" in act(only, "/apply-template", messages=messages)["prompt"]


def test_actions_on_slots_of_a_server_that_only_embeds_end_and_harm_nothing(only):
    engine = only.engine
    actions = ["save", "restore", "erase", "save-state", "restore-state", "tokens", "context-shift", "fork"]
    for action in actions:
        response = only.post(f"/slots/0?action={action}", filename="a.bin", state="", source=1)
        assert 400 <= response.status_code < 502, (action, response.text)
        assert response.json()["error"]["message"]
    for path in ("/sessions/1?action=save&slot=0", "/sessions/1?action=restore&slot=0"):
        assert 400 <= only.post(path).status_code < 502
    assert only.get("/v1/slots/0/info").status_code < 502
    assert only.engine.pid == engine.pid
    assert embed(only, ["hello"]).shape == (1, 64)


def test_refused_actions_leave_no_files_open(only):
    n_files = only.engine.num_fds()
    assert only.post("/slots/0?action=save", filename="a.bin").status_code == 501
    assert only.post("/slots/0?action=save-state").status_code == 501
    assert only.post("/slots/0?action=restore-state", state="U0VTMQ==").status_code == 501
    wait_until(lambda: only.engine.num_fds() <= n_files)


# Anything at all.


def nested(depth: int, inner: Any = "a") -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


INPUTS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    "",
    " ",
    "\n\t\r\x00\x01\x7f\x80\u2028\ufeff",
    "\ud800",
    "[CLS][SEP][PAD][MASK][UNK]" * 500,
    "x" * (1 << 20),
    "x " * (1 << 19),
    "\U0001f917" * (1 << 18),
    [],
    [[]],
    [[], []],
    ["a", ""],
    [None],
    [1.5],
    [True, False],
    [-1],
    [10**9],
    [2**31],
    [-(2**63)],
    [10**30],
    ["a", -1],
    [[1, 2], [-5]],
    [[1, 2], [3, [4]]],
    [1] * 100_000,
    ["a"] * 5000,
    [[1]] * 5000,
    ["a"] * 300_000,
    nested(500),
    {},
    {"prompt_string": 5},
    {"prompt_string": "a", "multimodal_data": ["AAAA"]},
    {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"content": [{"type": "text", "text": nested(50)}]},
    {"content": "a"},
    {"a" * 100_000: "a"},
]
FIELDS: list[dict[str, Any]] = [
    {"dimensions": value} for value in (0, -1, 10**20, "5", 2.5, 1e308, float("nan"), [], "x")
]
FIELDS += [{"encoding_format": value} for value in ("", "int8", 5, [], None)]
FIELDS += [{"embd_normalize": value} for value in (-2, 0, 1, 1024, 5000, 10**40, "x", float("inf"))]
FIELDS += [{"truncate": "maybe"}, {"truncate": 5}, {"model": 5}, {"model": "x" * 5000}, {"user": {}}]
FIELDS += [{"image_data": [{"data": "", "id": 1}]}, {"image_data": 5}, {"\x00": "\x00"}]
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"5",
    b'"input"',
    b"\xff\xfe\x00",
    b'\xef\xbb\xbf{"input": "a"}',
    b'{"input": NaN}',
    b'{"input": "\xff"}',
    b'{"input": "a", "input": 5}',
    b"[" * 200_000,
    b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"input":' * 50_000 + b"1" + b"}" * 50_000,
]


def hostile_inputs() -> Iterator[tuple[str, bytes]]:
    for value in INPUTS:
        yield "/v1/embeddings", json.dumps({"input": value}).encode()
        yield "/embedding", json.dumps({"content": value, "truncate": True}).encode()
    for fields in FIELDS:
        yield "/v1/embeddings", json.dumps({"input": "hello", **fields}).encode()
    for body in RAW:
        yield "/v1/embeddings", body


def hostile_ranks() -> Iterator[tuple[str, bytes]]:
    for value in INPUTS:
        yield "/classify", json.dumps({"inputs": value}).encode()
        yield "/rerank", json.dumps({"query": "a", "documents": value, "truncate": True}).encode()
        yield "/rerank", json.dumps({"query": value, "documents": ["a"], "truncate": True}).encode()
    for top_n in (-1, 0, 10**30, "x", 1.5, []):
        yield "/rerank", json.dumps({"query": "a", "documents": ["b", "c"], "top_n": top_n}).encode()
    for fields in ({"texts": [1]}, {"texts": "a"}, {"texts": [], "documents": ["a"]}, {"documents": [{}]}):
        yield "/rerank", json.dumps({"query": "a", **fields}).encode()
    for body in RAW:
        yield "/classify", body
        yield "/rerank", body


def send_all(server: CorralProcess, requests: Iterator[tuple[str, bytes]]) -> list[int]:
    """Every one is answered in JSON, and none is an error of the server's or ends the engine."""
    engine = server.engine
    statuses = []
    with httpx.Client(base_url=server.url, timeout=START_S) as http:
        for path, body in requests:
            response = http.post(path, content=body, headers={"Content-Type": "application/json"})
            answer = response.json()
            assert response.status_code < 500 or response.status_code == 501, (path, body[:100], answer)
            assert response.status_code == 200 or answer["error"]["message"], (path, body[:100], answer)
            statuses.append(response.status_code)
    assert server.engine.pid == engine.pid, "".join(server.lines)
    return statuses


@pytest.mark.slow
def test_no_input_ends_the_engine(embedder):
    before = embed(embedder, ["hello"])
    statuses = send_all(embedder, hostile_inputs())
    assert len(statuses) > 100
    assert statuses.count(200) > 10
    assert statuses.count(400) > 50
    assert np.array_equal(embed(embedder, ["hello"]), before)


@pytest.mark.slow
def test_no_documents_end_the_engine(classifier):
    before = act(classifier, "/classify", inputs="hello")
    statuses = send_all(classifier, hostile_ranks())
    assert len(statuses) > 100
    assert statuses.count(200) > 10
    assert act(classifier, "/classify", inputs="hello") == before


@pytest.mark.slow
def test_5000_inputs_are_5000_answers(embedder):
    rng = random.Random(1)
    inputs = [rng.choices(range(5, 100), k=rng.randint(1, 6)) for _ in range(5000)]
    vectors = embed(embedder, inputs)
    assert vectors.shape == (5000, 64)
    for i in range(0, 5000, 500):
        assert embed(embedder, [inputs[i]])[0] == pytest.approx(vectors[i], abs=CLOSE)


# Engines that die, clients that leave, and many at once.


@dataclass(frozen=True, slots=True)
class Large:
    """What an engine makes of many texts, and how much of its time that takes."""

    answer: Any
    vectors: Array
    cpu_s: float


@pytest.fixture(scope="module")
def large(minilm) -> Large:
    engine = minilm.engine
    before = cpu_s(engine)
    answer = act(minilm, "/v1/embeddings", input=LARGE)
    return Large(answer, vectors_of(answer), cpu_s(engine) - before)


async def start(server: CorralProcess) -> asyncio.Task[httpx.Response]:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(timeout=START_S) as http:
            return await http.post(f"{server.url}/v1/embeddings", json={"input": LARGE})

    return asyncio.create_task(post())


async def work(engine: psutil.Process, seconds: float, request: asyncio.Task[httpx.Response]) -> None:
    """Wait until the engine has worked on a request for so long, or it is done."""
    until = cpu_s(engine) + seconds
    while cpu_s(engine) < until and not request.done():
        await asyncio.sleep(0.01)


async def idle(engine: psutil.Process) -> None:
    """Wait until the engine has nothing to do."""
    before = -1.0
    while cpu_s(engine) - before > 0.05:
        before = cpu_s(engine)
        await asyncio.sleep(1)


async def leave(request: asyncio.Task[httpx.Response]) -> None:
    assert not request.done()
    request.cancel()
    await asyncio.wait({request})


async def next_engine(server: CorralProcess, lost: psutil.Process) -> psutil.Process:
    """The one that has taken over, as soon as it is ready."""
    while True:
        new = [engine for engine in server.engines if engine.pid != lost.pid]
        if new and (await asyncio.to_thread(server.get, "/health")).status_code == 200:
            return new[0]
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_lost_engine_costs_time_and_nothing_else(minilm, large):
    request = await start(minilm)
    lost = minilm.engine
    await work(lost, 0.4 * large.cpu_s, request)
    lost.kill()
    assert not request.done()
    response = await request
    assert response.status_code == 200
    assert response.json() == large.answer
    minilm.next_engine(lost)


@pytest.mark.slow
async def test_a_request_that_takes_three_engines_down_is_given_up(minilm, large):
    request = await start(minilm)
    n_killed = 0
    engine = minilm.engine
    while True:
        await work(engine, 0.1 * large.cpu_s, request)
        if request.done():
            break
        engine.kill()
        n_killed += 1
        engine = await next_engine(minilm, engine)
    assert n_killed == 3
    response = request.result()
    assert response.status_code == 500
    assert "3 times" in response.json()["error"]["message"]
    assert embed(minilm, LARGE[:1]) == pytest.approx(large.vectors[:1], abs=CLOSE)
    assert minilm.engine.pid == engine.pid


async def test_a_client_that_leaves_frees_the_engine(minilm, large):
    engine = minilm.engine
    before = cpu_s(engine)
    request = await start(minilm)
    await work(engine, 0.1 * large.cpu_s, request)
    await leave(request)
    assert embed(minilm, LARGE[:1]) == pytest.approx(large.vectors[:1], abs=CLOSE)
    await idle(engine)
    assert cpu_s(engine) - before < 0.5 * large.cpu_s
    assert minilm.engine.pid == engine.pid


async def test_a_client_may_leave_while_the_engine_is_away(minilm, large):
    request = await start(minilm)
    lost = minilm.engine
    await work(lost, 0.05 * large.cpu_s, request)
    lost.kill()
    await leave(request)
    engine = await next_engine(minilm, lost)
    before = cpu_s(engine)
    assert embed(minilm, LARGE[:1]) == pytest.approx(large.vectors[:1], abs=CLOSE)
    await idle(engine)
    assert cpu_s(engine) - before < 0.5 * large.cpu_s


async def test_a_small_request_does_not_wait_for_a_large_one(minilm, large):
    request = await start(minilm)
    await work(minilm.engine, 0.1 * large.cpu_s, request)
    small = await asyncio.to_thread(embed, minilm, LARGE[:1])
    await leave(request)
    assert small == pytest.approx(large.vectors[:1], abs=CLOSE)


@pytest.mark.slow
async def test_clients_that_come_together_get_their_own_vectors(minilm, large):
    async with httpx.AsyncClient(timeout=START_S) as http:
        starts = range(0, 256, 32)
        responses = await asyncio.gather(
            *(http.post(f"{minilm.url}/v1/embeddings", json={"input": LARGE[i : i + 32]}) for i in starts)
        )
    for i, response in zip(starts, responses, strict=True):
        assert response.status_code == 200
        assert vectors_of(response.json()) == pytest.approx(large.vectors[i : i + 32], abs=CLOSE)
