"""From valid requests to tasks, which nothing changes afterwards.

`plan_*` is pure and runs in a thread: tokens, parameters, and what else is wrong with a request. `prepare_*`
runs on the event loop around it: it loads media first, and then carries out what a request changes for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from corral.api.adapter import AdapterStore
from corral.api.disconnect import run_for_client
from corral.api.engine import Runner, new_task
from corral.api.model import ModelFacts
from corral.api.params import Baseline, cap_warnings, prepare_bound_params
from corral.api.pools import Pools, body_bytes
from corral.api.prompt import as_list, content_of, refuse_hopeless, tokenize_mixed
from corral.api.schema.completion import CompletionRequest, GenerationFields
from corral.api.system_prompt import NO_SYSTEM_PROMPT, SystemPrompt, prepare_system_prompt
from corral.core.errors import InvalidRequest
from corral.core.params import RANDOM_SEED, GenerationParams, Guidance
from corral.core.task import Task
from corral.media.collect import Collector, mark_prompt
from corral.media.intake import Attached, Intake, RequestMedia
from corral.telemetry.scope import record_of

T = TypeVar("T")

MAX_PROMPTS = 1024
_SHORT_BYTES = 64 << 10  # of a body whose media are marked on the event loop


class Defaults:
    """Mutable: what a request gets that asks for nothing in particular, and what all prompts begin with."""

    def __init__(self, params: GenerationParams, adapters: AdapterStore) -> None:
        self._params = params
        self._adapters = adapters
        self.system_prompt = NO_SYSTEM_PROMPT

    @property
    def params(self) -> GenerationParams:
        return msgspec.structs.replace(self._params, lora=self._adapters.config)

    @property
    def n_predict(self) -> int:
        """The most tokens that any request gets; negative: no limit."""
        return self._params.n_predict

    def guide(self, guidance: Guidance | None) -> None:
        """Have all requests steer away from a negative prompt, unless they say otherwise."""
        self._params = msgspec.structs.replace(self._params, guidance=guidance)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Prompts and their parameters. `change`: what the server's system prompt is to become."""

    prompts: list[list[int]]
    params: GenerationParams
    change: SystemPrompt | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PreparedCompletion:
    """Tasks, ready to run, with the media of each: `n` for every prompt."""

    tasks: list[tuple[Task, Attached | None]]
    n: int
    warnings: list[str]

    @property
    def max_queue_ms(self) -> int:
        return self.tasks[0][0].params.max_queue_ms

    @property
    def is_list(self) -> bool:
        """compat: /completion: a list is the answer to several prompts, or to one with several answers."""
        return len(self.tasks) > 1


@dataclass(frozen=True, slots=True)
class PrepareContext:
    """What requests are prepared with."""

    model: ModelFacts
    defaults: Defaults
    adapters: AdapterStore
    intake: Intake
    pools: Pools
    runner: Runner

    def baseline(self, media: RequestMedia | None = None) -> Baseline:
        info, defaults = self.model.info, self.defaults
        return Baseline(
            self.model.vocab,
            info.n_ctx,
            info.n_slots,
            defaults.params,
            defaults.system_prompt,
            self.adapters.ids,
            media,
        )

    async def load_media(
        self, request: Request, mark: Callable[[Collector], T]
    ) -> tuple[T, RequestMedia | None, list[str]]:
        """A content whose media are marked, these media, and warnings of images in texts that are none."""
        info = self.model.info
        collector = Collector(info.media)
        marked = await self._run_mark(request, mark, collector)
        if not collector.refs:
            return marked, None, collector.warnings
        loading = self.intake.load(collector.refs, info, record_of(request).client.tenant)
        loaded = await run_for_client(loading, request.receive)
        if loaded.unusable:
            collector = Collector(info.media, loaded.unusable)
            marked = await self._run_mark(request, mark, collector)
        media = RequestMedia(collector.pattern, loaded) if loaded.items else None
        return marked, media, collector.warnings

    async def make_tasks(
        self,
        request: Request,
        body: GenerationFields,
        plan: TaskPlan,
        media: RequestMedia | None = None,
        warnings: Sequence[str] = (),
    ) -> PreparedCompletion:
        """Carry out what a request changes for all, then make its tasks, with the adapter scales of now."""
        if media is not None:
            media.require_all(plan.prompts)
        await self._change_system_prompt(request, plan, media)
        params, client = plan.params, record_of(request).client
        if "lora" not in body.model_fields_set:
            params = msgspec.structs.replace(params, lora=self.adapters.config)
        tasks: list[tuple[Task, Attached | None]] = []
        for prompt in plan.prompts:
            attached = media.of(prompt) if media is not None else None
            for sample in range(body.n):
                tasks.append((new_task(prompt, _sample_params(params, sample), client, attached), attached))
        remarks = [*body.warnings, *cap_warnings(body, self.defaults.n_predict), *warnings, *plan.warnings]
        return PreparedCompletion(tasks, body.n, remarks)

    async def _run_mark(self, request: Request, mark: Callable[[Collector], T], collector: Collector) -> T:
        n_bytes = body_bytes(request)
        if n_bytes < _SHORT_BYTES:
            return mark(collector)
        return await self.pools.run_sized(n_bytes, mark, collector)

    async def _change_system_prompt(
        self, request: Request, plan: TaskPlan, media: RequestMedia | None
    ) -> None:
        """From now on all prompts begin with what a request asks for, if it does."""
        change = plan.change
        if change is None:
            return
        if plan.params.constraint is not None:
            # Only the engine can tell whether a grammar is right; a request that is wrong changes nothing.
            prompt = list(change.tokens) or max(plan.prompts, key=len)
            attached = media.of(prompt) if media is not None else None
            await run_for_client(self.runner.evaluate(prompt, plan.params, attached), request.receive)
        self.defaults.system_prompt = change


async def prepare_completion(
    request: Request, body: CompletionRequest, context: PrepareContext
) -> PreparedCompletion:
    sees = bool(context.model.info.media)
    mark = partial(mark_prompt, body.prompt, body.image_data, "prompt", sees)
    prompt, media, _ = await context.load_media(request, mark)
    if media is not None:
        body = body.model_copy(update={"prompt": prompt})
    plan = await context.pools.run_prompt(plan_completion, body, context.baseline(media))
    return await context.make_tasks(request, body, plan, media)


def plan_completion(body: CompletionRequest, base: Baseline) -> TaskPlan:
    base, change = apply_system_prompt(body, base)
    prompts = _plan_prompts(body.prompt, base)
    params = prepare_bound_params(body, base)
    if len(prompts) * body.n > MAX_PROMPTS:
        message = f"{body.n} answers for {len(prompts)} prompts are more than {MAX_PROMPTS}"
        raise InvalidRequest(message, field=body.name_of("n"))
    if change is not None and body.prompt == "":
        # compat: /completion: a system prompt alone is only evaluated.
        prompts = [list(change.tokens)]
        params = msgspec.structs.replace(params, n_predict=0)
    return TaskPlan(prompts, params, change)


def apply_system_prompt(body: GenerationFields, base: Baseline) -> tuple[Baseline, SystemPrompt | None]:
    """The baseline with the system prompt that a request brings, and that one, if it does."""
    system, change = prepare_system_prompt(body.system_prompt, base.vocab, base.n_ctx, base.system)
    return base if change is None else replace(base, system=system), change


def _plan_prompts(prompt: Any, base: Baseline) -> list[list[int]]:
    items, _ = as_list(prompt, "prompt")
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(f"holds {len(items)} prompts, at most {MAX_PROMPTS} are allowed", field="prompt")
    prompts = [_tokenize_prompt(item, base) for item in items]
    return [base.system.before(tokens, base.n_ctx) for tokens in prompts]


def _tokenize_prompt(prompt: Any, base: Baseline) -> list[int]:
    content = content_of(prompt, "prompt")
    refuse_hopeless(content, base.vocab, base.n_ctx)
    return tokenize_mixed(content, base, base.vocab.n_tokens, base.system.is_empty, True, "prompt")


def _sample_params(params: GenerationParams, sample: int) -> GenerationParams:
    """Several answers to one prompt have seeds that count up."""
    if not sample:
        return params
    seed = (params.sampling.seed + sample) % RANDOM_SEED
    return msgspec.structs.replace(params, sampling=msgspec.structs.replace(params.sampling, seed=seed))
