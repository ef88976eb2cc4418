"""Build an infill prompt from a prefix, a suffix and other files.

Pure but for the vocabulary it reads. What does not fit is cut, not refused, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from corral.core.errors import NotSupported
from corral.core.fim import FimTokens
from corral.generate.call import AnyCall
from corral.generate.params import RequestDefaults, prepare_bound_params
from corral.generate.prepare import PreparedCompletion, TaskPlan, apply_system_prompt
from corral.generate.prompt import refuse_hopeless, tokenize_mixed
from corral.generate.vocab import Vocab
from corral.schema.infill import Extra, InfillRequest

PROJECT = "myproject\n"
FILE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"
CHARS_PER_TOKEN = 32  # of a longer text, only this many for each token of the context are tokenized
_ENDS = {"prefix": "last", "suffix": "first", "extra": "last"}

Item = str | int


class Marks(NamedTuple):
    """The tokens without which a model cannot infill."""

    pre: int
    suf: int
    mid: int


class Frame(NamedTuple):
    """The tokens around the parts, and the order of the parts."""

    marks: Marks
    bos: list[int]
    is_suffix_first: bool

    @property
    def n_tokens(self) -> int:
        return len(self.marks) + len(self.bos)


class Sizes(NamedTuple):
    """Token counts of the parts that can be truncated."""

    prefix: int
    suffix: int
    extra: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a prompt, in tokens."""

    prefix: list[int]
    suffix: list[int]
    extra: list[int]
    prompt: list[int]

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(self.prefix), len(self.suffix), len(self.extra))

    def cut(self, sizes: Sizes) -> Parts:
        """Keep the tokens of each part that are nearest to the gap."""
        return Parts(
            prefix=self.prefix[len(self.prefix) - sizes.prefix :],
            suffix=self.suffix[: sizes.suffix],
            extra=self.extra[len(self.extra) - sizes.extra :],
            prompt=self.prompt,
        )


async def prepare_infill(call: AnyCall, body: InfillRequest) -> PreparedCompletion:
    context = call.services.prepare
    plan = await context.pools.run_prompt(call.client, plan_infill, body, context.request_defaults())
    return await context.make_tasks(call, body, plan)


def plan_infill(body: InfillRequest, base: RequestDefaults) -> TaskPlan:
    base, change = apply_system_prompt(body, base)
    vocab, system = base.vocab, base.system
    params = prepare_bound_params(body, base)
    refuse_hopeless(body.prompt, vocab, base.n_ctx)
    parts, clipped = _tokenize_parts(body, vocab, base.n_ctx)
    bos = [vocab.bos] if vocab.adds_bos and system.is_empty else []
    frame = Frame(require_marks(vocab.fim), bos, base.is_suffix_first)
    n_ctx = base.n_ctx - len(system.tokens)
    sizes = plan_sizes(parts.sizes, len(parts.prompt), frame.n_tokens, params.n_predict, base.n_batch, n_ctx)
    tokens = system.before(join_parts(parts.cut(sizes), frame), base.n_ctx)
    names = {name: body.name_of(f"input_{name}") for name in _ENDS if name != "extra" or body.input_extra}
    return TaskPlan([tokens], params, change, _explain_cut(names, parts.sizes, sizes, clipped))


def require_marks(fim: FimTokens) -> Marks:
    """Return the tokens that infilling needs; raise if the model lacks one."""
    if fim.pre is not None and fim.suf is not None and fim.mid is not None:
        return Marks(fim.pre, fim.suf, fim.mid)
    raise NotSupported(f"Infill is not supported by this model: it has {missing_marks(fim)}")


def missing_marks(fim: FimTokens) -> str:
    """Describe the infill tokens that the model lacks; empty: none."""
    tokens = {"prefix": fim.pre, "suffix": fim.suf, "middle": fim.mid}
    return ", ".join(f"no {name} token" for name, token in tokens.items() if token is None)


def plan_sizes(
    wanted: Sizes, n_prompt: int, n_around: int, n_predict: int, n_batch: int, n_ctx: int
) -> Sizes:
    """Decide how much of each part is kept: a batch of prefix and suffix, three to one, and extra before it.

    compat: /infill: the formulas are llama-server's. There they can exceed the context; here the batch, and
    then all parts together, leave room in it for the answer: up to a quarter.
    """
    n_answer = max(1, min(n_ctx if n_predict < 0 else n_predict, n_ctx // 4))
    n_room = n_ctx - n_answer - n_around
    n_batch = max(0, min(n_batch, n_room))
    n_left = max(0, n_room - n_prompt)
    prefix = min(wanted.prefix, 3 * (n_batch // 4), n_left)
    suffix = min(wanted.suffix, max(0, n_batch // 4 - 2 - n_prompt))
    n_extra = min(n_ctx - n_batch - 2 * n_predict, n_left - prefix - suffix)
    return Sizes(prefix, suffix, min(wanted.extra, max(0, n_extra)))


def join_parts(parts: Parts, frame: Frame) -> list[int]:
    """Put the parts in the order the model knows, with its marks between them."""
    pre, suf, mid = frame.marks
    prefix, suffix = [pre, *parts.prefix], [suf, *parts.suffix]
    around = [*suffix, *prefix] if frame.is_suffix_first else [*prefix, *suffix]
    # compat: /infill: BOS follows the extra part, and the prompt where the documentation has it.
    return [*parts.extra, *frame.bos, *around, mid, *parts.prompt]


def extra_items(extras: Iterable[Extra], fim: FimTokens) -> list[Item]:
    """Return the extra files as a repository, if the model has tokens for that; else as snippets."""
    items: list[Item] = [] if fim.rep is None else [fim.rep, PROJECT]
    for extra in extras:
        items += [SNIPPET] if fim.sep is None else [fim.sep, f"{extra.filename}\n"]
        items.append(extra.text)
    return items if fim.sep is None else [*items, fim.sep, FILE]


def first_items(items: Sequence[Item], n_tokens: int) -> list[Item]:
    """Keep as much of the beginning as could become `n_tokens`."""
    return _clip(items, n_tokens, lambda text, n: text[:n])


def last_items(items: Sequence[Item], n_tokens: int) -> list[Item]:
    """Keep as much of the end as could become `n_tokens`."""
    return _clip(reversed(items), n_tokens, lambda text, n: text[-n:])[::-1]


def _clip(items: Iterable[Item], n_tokens: int, cut: Callable[[str, int], str]) -> list[Item]:
    kept: list[Item] = []
    n_chars = n_tokens * CHARS_PER_TOKEN
    for item in items:
        if n_chars <= 0:
            break
        kept.append(cut(item, n_chars) if isinstance(item, str) else item)
        n_chars -= max(CHARS_PER_TOKEN, len(item) if isinstance(item, str) else 0)
    return kept


def _tokenize_parts(request: InfillRequest, vocab: Vocab, n_ctx: int) -> tuple[Parts, set[str]]:
    """Tokenize the parts; return them, and the names of those that were truncated before."""
    whole = {
        "prefix": _items(request.input_prefix),
        "suffix": _items(request.input_suffix),
        "extra": extra_items(request.input_extra, vocab.fim),
    }
    near = {
        "prefix": last_items(whole["prefix"], n_ctx),
        "suffix": first_items(whole["suffix"], n_ctx),
        "extra": last_items(whole["extra"], n_ctx),
    }
    tokens = {
        name: tokenize_mixed(near[name], vocab, False, False, request.name_of(f"input_{name}"))
        for name in near
    }
    prompt = vocab.tokenize(request.prompt, add_special=False, parse_special=True)
    return Parts(**tokens, prompt=prompt), {name for name in whole if near[name] != whole[name]}


def _items(content: str | list[Item]) -> list[Item]:
    return [content] if isinstance(content, str) else content


def _explain_cut(names: Mapping[str, str], wanted: Sizes, kept: Sizes, clipped: set[str]) -> list[str]:
    """Warn about truncated parts; `names`: what the client calls them."""
    warnings = []
    for name, field in names.items():
        n, n_all = getattr(kept, name), getattr(wanted, name)
        if n < n_all or name in clipped:
            more = "more than " if name in clipped else ""
            warnings.append(f"Field '{field}': kept the {_ENDS[name]} {n} of {more}{n_all} tokens")
    return warnings
