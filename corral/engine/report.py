"""Explain how much of a prompt was cached, and why no more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.chunk import TokenArray, common_prefix
from corral.core.result import CacheReport, Tier
from corral.engine.prefix import Prefix, PrefixOrigin
from corral.engine.reuse import Move
from corral.engine.saved import SavedState


def explain(
    prompt: TokenArray,
    prefix: Prefix,
    own_slot: int,
    stored: SavedState | None,
    moves: Sequence[Move],
    held: Sequence[TokenArray],
    hidden: Sequence[TokenArray] = (),
) -> CacheReport:
    """Explain a prefix; `held`: token runs that could have been reused, with the most similar one. The tokens
    of the `hidden` ones are not told."""
    n_cached = moves[-1].end if moves else prefix.n
    tier = tier_of(prefix, stored, n_cached)
    nearest = max(held, key=lambda tokens: common_prefix(tokens, prompt), default=prompt[:0])
    n_told = common_prefix(nearest, prompt)
    n_common = max([n_told, *(common_prefix(tokens, prompt) for tokens in hidden)])
    return CacheReport(
        tier=tier,
        id_slot=slot_of(prefix, tier, own_slot),
        n_cached=n_cached,
        n_moved=sum(move.n for move in moves),
        n_common=n_common,
        is_checkpoint=is_checkpoint(prefix, stored),
        token=int(prompt[n_common]) if n_common < len(prompt) else None,
        cached_token=int(nearest[n_common]) if n_told == n_common < len(nearest) else None,
    )


def is_checkpoint(prefix: Prefix, stored: SavedState | None) -> bool:
    """Whether a prefix ends at a checkpoint, because it cannot be cut later."""
    if prefix.origin is PrefixOrigin.STORE and stored is not None:
        return prefix.n < len(stored.tokens) and prefix.n in stored.cuts
    return prefix.is_checkpoint


def whole_report(slot: int, n_prompt: int) -> CacheReport:
    """Report a whole prompt that came from a slot that has just evaluated it."""
    return CacheReport(tier=Tier.LIVE, id_slot=slot, n_cached=n_prompt, n_common=n_prompt)


def tier_of(prefix: Prefix, stored: SavedState | None, n_cached: int) -> Tier:
    """Return the origin of the reused tokens."""
    if not n_cached:
        return Tier.NONE
    if prefix.origin is not PrefixOrigin.STORE or stored is None:
        return Tier.LIVE
    return Tier.DISK if stored.is_from_disk else Tier.RAM


def slot_of(prefix: Prefix, tier: Tier, own_slot: int) -> int:
    """Return the slot that they came from; -1: none."""
    if tier is not Tier.LIVE:
        return -1
    return own_slot if prefix.origin is PrefixOrigin.OWN else prefix.slot
