"""`POST /rerank` and `POST /classify`: what a model with a classification head thinks of texts."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from corral.api import group
from corral.api.answer import CLASSES, RANKS
from corral.api.embed import embed, prepare_embedding, require_classes, require_scores, respond
from corral.api.error_shape import LLAMA_ERRORS
from corral.api.openapi import answers
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.render.embedding import render_classes, render_list, render_ranks
from corral.api.router import Operation, Router
from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.prepare_embedding import prepare_inputs, prepare_pairs
from corral.schema.embedding import ClassifyRequest, RerankRequest

_POLICY = Policy(
    permission=Permission.GENERATE,
    errors=LLAMA_ERRORS,
    model=ModelUse(Role.RANK, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None),
    follow=Follow.NEVER,
    live=None,
    settles=False,
    is_batched=False,
)

router = Router()


@router.post(
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    operation=Operation("rerankDocuments", "Rank documents by how well they fit a query", group.EMBEDDINGS),
    policy=_POLICY,
    body=RerankRequest,
    needs=lambda services: require_scores(services.model.info.encoder),
    responses=answers(RANKS, 501),
)
async def rerank(call: Call[RerankRequest]) -> Response:
    """Documents, the ones that fit a query best first."""
    services, body = call.services, call.body
    is_tei = body.texts is not None
    field = "texts" if is_tei else "documents"
    texts = _texts_of((body.texts if is_tei else body.documents) or [], field)
    content = (body.query, texts, field, services.model.rerank_template)
    prepared = await prepare_embedding(call, body.truncate, prepare_pairs, *content)
    vectors = await embed(call, prepared)

    def render() -> Any:
        inputs = prepared.inputs
        if is_tei:
            given = [{"text": text} for text in texts] if body.return_text else []
            return render_ranks(vectors, inputs, given, body.top_n, "score")
        documents = [{"document": {"text": text}} for text in texts] if body.return_documents else []
        results = render_ranks(vectors, inputs, documents, body.top_n, "relevance_score")
        return render_list(body.model or services.model.name, inputs, body.warnings, results=results)

    return await respond(call, vectors, render)


@router.post(
    "/classify",
    "/v1/classify",
    operation=Operation("classifyTexts", "Classify texts", group.EMBEDDINGS),
    policy=_POLICY,
    body=ClassifyRequest,
    needs=lambda services: require_classes(services.model.info.encoder),
    responses=answers(CLASSES, 501),
)
async def classify(call: Call[ClassifyRequest]) -> Response:
    """The model's labels for texts, with raw scores, the best first."""
    services, body = call.services, call.body
    encoder = services.model.info.encoder
    prepared = await prepare_embedding(call, body.truncate, prepare_inputs, body.inputs, "inputs")
    vectors = await embed(call, prepared)

    def render() -> Any:
        inputs = prepared.inputs
        classes = render_classes(vectors, inputs, encoder.labels)
        predictions = classes if inputs.is_list else classes[0]
        return render_list(body.model or services.model.name, inputs, body.warnings, predictions=predictions)

    return await respond(call, vectors, render)


def _texts_of(documents: list[Any], field: str) -> list[str]:
    texts: list[str] = []
    for i, item in enumerate(documents):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise InvalidRequest("must be a string, or an object with a string 'text'", field=f"{field}[{i}]")
        texts.append(text)
    return texts
