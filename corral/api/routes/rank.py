"""`POST /rerank` and `POST /classify`: what a model with a classification head thinks of texts."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from corral.api.embed import embed, prepare, require_classes, require_scores, respond
from corral.api.openapi import answers, body_of
from corral.api.prepare_embedding import prepare_inputs, prepare_pairs
from corral.api.render.embedding import render_classes, render_list, render_ranks
from corral.api.schema.answer import CLASSES, RANKS
from corral.api.schema.embedding import ClassifyRequest, RerankRequest
from corral.api.schema.parse import parse_request
from corral.api.service import service_of
from corral.core.errors import InvalidRequest

router = APIRouter()

_RANKS = answers(RANKS, 501)
_CLASSES = answers(CLASSES, 501)


@router.post("/rerank", openapi_extra=body_of(RerankRequest), responses=_RANKS)
@router.post("/reranking", openapi_extra=body_of(RerankRequest), responses=_RANKS)
@router.post("/v1/rerank", openapi_extra=body_of(RerankRequest), responses=_RANKS)
@router.post("/v1/reranking", openapi_extra=body_of(RerankRequest), responses=_RANKS)
async def rerank(request: Request) -> Response:
    """Documents, the ones that fit a query best first."""
    service = service_of(request)
    require_scores(service.info.encoder)
    body, warnings = parse_request(RerankRequest, await service.read(request))
    is_tei = body.texts is not None
    field = "texts" if is_tei else "documents"
    texts = _texts_of((body.texts if is_tei else body.documents) or [], field)
    inputs = await prepare(
        service, request, body.truncate, prepare_pairs, body.query, texts, field, service.rerank_template
    )
    vectors = await embed(service, request, inputs)

    def render() -> Any:
        if is_tei:
            given = [{"text": text} for text in texts] if body.return_text else []
            return render_ranks(vectors, inputs, given, body.top_n, "score")
        documents = [{"document": {"text": text}} for text in texts] if body.return_documents else []
        results = render_ranks(vectors, inputs, documents, body.top_n, "relevance_score")
        return render_list(body.model or service.model_name, inputs, warnings, results=results)

    return await respond(service, vectors, render)


@router.post("/classify", openapi_extra=body_of(ClassifyRequest), responses=_CLASSES)
@router.post("/v1/classify", openapi_extra=body_of(ClassifyRequest), responses=_CLASSES)
async def classify(request: Request) -> Response:
    """The model's labels for texts, with raw scores, the best first."""
    service = service_of(request)
    encoder = service.info.encoder
    require_classes(encoder)
    body, warnings = parse_request(ClassifyRequest, await service.read(request))
    inputs = await prepare(service, request, body.truncate, prepare_inputs, body.inputs, "inputs")
    vectors = await embed(service, request, inputs)

    def render() -> Any:
        classes = render_classes(vectors, inputs, encoder.labels)
        predictions = classes if inputs.is_list else classes[0]
        return render_list(body.model or service.model_name, inputs, warnings, predictions=predictions)

    return await respond(service, vectors, render)


def _texts_of(documents: list[Any], field: str) -> list[str]:
    texts: list[str] = []
    for i, item in enumerate(documents):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise InvalidRequest("must be a string, or an object with a string 'text'", field=f"{field}[{i}]")
        texts.append(text)
    return texts
