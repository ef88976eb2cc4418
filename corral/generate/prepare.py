"""Convert valid requests to tasks, which nothing changes afterwards.

`plan_*` is pure and runs in a thread: tokens, parameters, and what else is wrong with a request. `prepare_*`
runs on the event loop around it: it loads media first, and then carries out what a request changes for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from corral.core.errors import InvalidRequest
from corral.core.key_role import Permission
from corral.core.params import RANDOM_SEED, GenerationParams, Guidance
from corral.core.task import Task
from corral.generate.adapter import AdapterStore
from corral.generate.answer_size import check_answer_size
from corral.generate.call import AnyCall
from corral.generate.disconnect import run_for_client
from corral.generate.engine import Runner, new_task
from corral.generate.model import ModelFacts
from corral.generate.params import RequestDefaults, cap_warnings, idle_warnings, prepare_bound_params
from corral.generate.pools import SHORT_BYTES, Pools
from corral.generate.prompt import as_list, content_of, refuse_hopeless, tokenize_mixed
from corral.generate.system_prompt import (
    FIELD,
    NO_SYSTEM_PROMPT,
    SystemPrompt,
    parse_system_prompt,
    tokenize_system_prompt,
)
from corral.media.collect import Collector, mark_prompt
from corral.media.intake import Attached, Intake, RequestMedia
from corral.schema.completion import CompletionRequest, GenerationFields

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=CompletionRequest)

MAX_PROMPTS = 1024
_CHEAP_TEXTS = ("prompt", "model")
_SHORT_BYTES = 64 << 10  # of a body whose media are marked on the event loop


class Defaults:
    """Mutable: the server's default parameters, and its system prompt."""

    def __init__(self, params: GenerationParams, adapters: AdapterStore, max_predict: int = -1) -> None:
        self._params = params
        self.max_predict = max_predict  # tokens of any answer; negative: no limit
        self._adapters = adapters
        self.system_prompt = NO_SYSTEM_PROMPT

    @property
    def params(self) -> GenerationParams:
        return msgspec.structs.replace(self._params, lora=self._adapters.config)

    def guide(self, guidance: Guidance | None) -> None:
        """Set the default negative prompt of all requests."""
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
    ping_s: int | None = None  # between two comments of a silent stream; None: the server's default

    @property
    def max_queue_ms(self) -> int:
        return self.tasks[0][0].params.max_queue_ms

    @property
    def is_list(self) -> bool:
        """compat: /completion: a list is the answer to several prompts, or to one with several answers."""
        return len(self.tasks) > 1


@dataclass(frozen=True, slots=True)
class PrepareContext:
    """The values that preparing a request needs."""

    model: ModelFacts
    defaults: Defaults
    adapters: AdapterStore
    intake: Intake
    pools: Pools
    runner: Runner
    max_response_bytes: int
    n_batch: int
    is_suffix_first: bool

    def request_defaults(self, media: RequestMedia | None = None) -> RequestDefaults:
        info, defaults = self.model.info, self.defaults
        return RequestDefaults(
            self.model.vocab,
            info.n_ctx,
            info.n_slots,
            defaults.params,
            defaults.system_prompt,
            self.adapters.ids,
            media,
            defaults.max_predict,
            self.n_batch,
            self.is_suffix_first,
        )

    async def load_media(
        self, call: AnyCall, mark: Callable[[Collector], T]
    ) -> tuple[T, RequestMedia | None, list[str]]:
        """Return the content with marked media, the media, and warnings about unusable images in texts."""
        info = self.model.info
        collector = Collector(info.media)
        marked = await self._run_mark(call, mark, collector)
        if not collector.refs:
            return marked, None, collector.warnings
        loading = self.intake.load(collector.refs, info, call.client.tenant)
        loaded = await run_for_client(loading, call.caller.disconnect)
        if loaded.unusable:
            collector = Collector(info.media, loaded.unusable)
            marked = await self._run_mark(call, mark, collector)
        media = RequestMedia(collector.pattern, loaded) if loaded.items else None
        return marked, media, collector.warnings

    async def make_tasks(
        self,
        call: AnyCall,
        body: GenerationFields,
        plan: TaskPlan,
        media: RequestMedia | None = None,
        warnings: Sequence[str] = (),
    ) -> PreparedCompletion:
        """Apply the server-wide changes of a request, then make its tasks with the current adapter scales."""
        if media is not None:
            media.require_all(plan.prompts)
        check_answer_size(body, plan.prompts, plan.params, self.model.info.n_ctx, self.max_response_bytes)
        await self._change_system_prompt(call, plan, media)
        params, client = plan.params, call.client
        if "lora" not in body.model_fields_set:
            params = msgspec.structs.replace(params, lora=self.adapters.config)
        tasks: list[tuple[Task, Attached | None]] = []
        for prompt in plan.prompts:
            attached = media.of(prompt) if media is not None else None
            for sample in range(body.n):
                tasks.append((new_task(prompt, _sample_params(params, sample), client, attached), attached))
        remarks = [*body.warnings, *cap_warnings(body, self.defaults.max_predict), *warnings, *plan.warnings]
        ping_s = body.sse_ping_interval if "sse_ping_interval" in body.model_fields_set else None
        return PreparedCompletion(tasks, body.n, [*remarks, *idle_warnings(params)], ping_s)

    async def _run_mark(self, call: AnyCall, mark: Callable[[Collector], T], collector: Collector) -> T:
        if call.n_bytes < _SHORT_BYTES:
            return mark(collector)
        return await self.pools.run_sized(call.client, call.n_bytes, mark, collector)

    async def _change_system_prompt(self, call: AnyCall, plan: TaskPlan, media: RequestMedia | None) -> None:
        """Change the server's system prompt if the request asks for it."""
        change = plan.change
        if change is None:
            return
        call.client.require(Permission.CHANGE, "changing the prompt of all clients", FIELD)
        if plan.params.constraint is not None:
            # Only the engine can tell whether a grammar is right; a request that is wrong changes nothing.
            prompt = list(change.tokens) or max(plan.prompts, key=len)
            attached = media.of(prompt) if media is not None else None
            work = self.runner.evaluate(prompt, plan.params, attached, call.record)
            await run_for_client(work, call.caller.disconnect)
        self.defaults.system_prompt = change


async def prepare_completion(call: AnyCall, body: CompletionRequest) -> PreparedCompletion:
    return await prepare_prompts(call, body, plan_completion)


async def prepare_prompts(
    call: AnyCall, body: BodyT, plan_tasks: Callable[[BodyT, RequestDefaults], TaskPlan]
) -> PreparedCompletion:
    context = call.services.prepare
    sees = bool(context.model.info.media)
    mark = partial(mark_prompt, body.prompt, body.image_data, "prompt", sees)
    prompt, media, _ = await context.load_media(call, mark)
    if media is not None:
        body = body.model_copy(update={"prompt": prompt})
    base = context.request_defaults(media)
    if media is None and call.n_bytes < SHORT_BYTES and _is_plain(body):
        plan = await context.pools.run_short(
            call.client,
            base.vocab,
            lambda vocab: plan_tasks(body, replace(base, vocab=vocab)),
        )
    else:
        plan = await context.pools.run_prompt(call.client, plan_tasks, body, base)
    return await context.make_tasks(call, body, plan, media)


def _is_plain(body: CompletionRequest) -> bool:
    """Whether all but the prompt are numbers, so that nothing takes long to plan."""
    given = body.model_fields_set.intersection(type(body).model_fields).difference(_CHEAP_TEXTS)
    return all(isinstance(getattr(body, name), int | float | None) for name in given)


def plan_completion(body: CompletionRequest, base: RequestDefaults) -> TaskPlan:
    base, change = apply_system_prompt(body, base)
    prompts = _plan_prompts(body.prompt, base)
    params = prepare_bound_params(body, base)
    if len(prompts) * body.n > MAX_PROMPTS:
        message = (
            f"{body.n} answers for {len(prompts)} prompts: the limit is {MAX_PROMPTS} answers per request"
        )
        raise InvalidRequest(message, field=body.name_of("n"))
    if change is not None and body.prompt == "":
        # compat: /completion: a system prompt alone is only evaluated.
        prompts = [list(change.tokens)]
        params = msgspec.structs.replace(params, n_predict=0)
    return TaskPlan(prompts, params, change)


def apply_system_prompt(
    body: GenerationFields, base: RequestDefaults
) -> tuple[RequestDefaults, SystemPrompt | None]:
    """Return the defaults with the request's system prompt, and that prompt if it has one."""
    if body.system_prompt is None:
        return base, None
    change = tokenize_system_prompt(parse_system_prompt(body.system_prompt), base.vocab, base.n_ctx)
    return replace(base, system=change), change


def _plan_prompts(prompt: Any, base: RequestDefaults) -> list[list[int]]:
    items, _ = as_list(prompt, "prompt")
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(f"has {len(items)} prompts; the limit is {MAX_PROMPTS}", field="prompt")
    prompts = [_tokenize_prompt(item, base) for item in items]
    return [base.system.before(tokens, base.n_ctx) for tokens in prompts]


def _tokenize_prompt(prompt: Any, base: RequestDefaults) -> list[int]:
    content = content_of(prompt, "prompt")
    refuse_hopeless(content, base.vocab, base.n_ctx)
    return tokenize_mixed(content, base, base.system.is_empty, True, "prompt")


def _sample_params(params: GenerationParams, sample: int) -> GenerationParams:
    """Return the parameters of each answer to a prompt; their seeds count up."""
    if not sample:
        return params
    seed = (params.sampling.seed + sample) % RANDOM_SEED
    return msgspec.structs.replace(params, sampling=msgspec.structs.replace(params.sampling, seed=seed))
