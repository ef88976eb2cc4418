"""The verdict on a soak, for people and for programs: counts, numbers, and every promise that was broken."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.soak.footprint import Mark
from tests.soak.score import Score

HEALTH_MS = 100.0  # what /health is to take in 99 of 100 cases
# What may be more at the end than it was: heaps are not compact, and pools of threads fill up slowly.
MAX_GROWTH_MIB = 32.0
MAX_MORE_FDS = 4
MAX_MORE_THREADS = 8


@dataclass(slots=True)
class Health:
    """Mutable: how `/health` was, in order of time taken."""

    took_ms: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def percentile_ms(self, share: float) -> float:
        return round(self.took_ms[int(share * (len(self.took_ms) - 1))], 1) if self.took_ms else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    n_idle: int
    n_dribbling: int
    score: Score
    marks: list[Mark]
    health: Health
    recovery_s: list[float]
    exit_code: int | None = None
    n_tracebacks: int = 0
    left_behind: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problems(self) -> list[str]:
        """Empty if every promise was kept; times are not among them."""
        found = [*self.score.problems, *self.health.problems[:20]]
        found += [f"after '{mark.name}': {left}" for mark in self.marks for left in mark.leftovers]
        found += self._growth()
        if self.exit_code:
            found.append(f"the server ended with {self.exit_code}")
        if self.n_tracebacks:
            found.append(f"{self.n_tracebacks} tracebacks in the log")
        if self.left_behind:
            found.append(f"half-written files: {self.left_behind}")
        return found

    def facts(self) -> dict[str, Any]:
        """All of it, to be kept."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "sockets": {"idle": self.n_idle, "dribbling": self.n_dribbling},
            "counts": dict(sorted(self.score.counts.items())),
            "statuses": dict(sorted(self.score.statuses.items())),
            "health": {
                "asked": len(self.health.took_ms),
                "statuses": self.health.statuses,
                "p50_ms": self.health.percentile_ms(0.5),
                "p99_ms": self.health.percentile_ms(0.99),
                "max_ms": self.health.percentile_ms(1.0),
            },
            "engines": {
                "lost": len(self.recovery_s),
                "median_s_to_the_next": round(sorted(self.recovery_s)[len(self.recovery_s) // 2], 2)
                if self.recovery_s
                else 0.0,
                "longest_s": round(max(self.recovery_s, default=0.0), 2),
            },
            "marks": [asdict(mark) for mark in self.marks],
            "exit_code": self.exit_code,
            "problems": self.problems(),
            "n_wrong": self.score.n_problems,
        }

    def text(self) -> str:
        facts = self.facts()
        lines = [
            f"soak with --seed {self.seed}: {facts['counts']['requests']} requests in {self.seconds:g} s"
        ]
        lines += [f"  {n:8} {what}" for what, n in facts["counts"].items()]
        lines += [f"  {n:8} x {what}" for what, n in facts["statuses"].items()]
        health, engines = facts["health"], facts["engines"]
        lines.append(
            f"/health {health['asked']} times {health['statuses']}: median {health['p50_ms']} ms, "
            f"p99 {health['p99_ms']} ms (to be under {HEALTH_MS:g}), at most {health['max_ms']} ms"
        )
        lines.append(
            f"engines lost: {engines['lost']}; until the next one was ready: "
            f"{engines['median_s_to_the_next']} s (median), {engines['longest_s']} s (longest)"
        )
        for mark in self.marks:
            lines.append(f"after '{mark.name}' ({mark.n_requests} requests)")
            lines += [f"  {who}: {self._held(mark, who)}" for who in ("front", "engine")]
        lines.append(f"exit code {self.exit_code}, {self.n_tracebacks} tracebacks in the log")
        lines += [f"PROBLEM: {problem}" for problem in facts["problems"]] or ["no problems"]
        return "\n".join(lines)

    @staticmethod
    def _held(mark: Mark, who: str) -> str:
        held = getattr(mark, who)
        return f"{held.rss_mib} MiB, {held.n_fds} descriptors, {held.n_threads} threads"

    def _growth(self) -> list[str]:
        """The front from the end of the warm-up on, the last engine from when it had settled."""
        if len(self.marks) < 4:
            return []
        first, _, settled, last = self.marks
        pairs = [("front", first.front, last.front), ("engine", settled.engine, last.engine)]
        found = []
        for who, before, after in pairs:
            if after.rss_mib > before.rss_mib + MAX_GROWTH_MIB:
                found.append(f"the {who} has grown from {before.rss_mib} to {after.rss_mib} MiB")
            if after.n_fds > before.n_fds + MAX_MORE_FDS:
                found.append(f"the {who} has {after.n_fds} descriptors, before it had {before.n_fds}")
            if after.n_threads > before.n_threads + MAX_MORE_THREADS:
                found.append(f"the {who} has {after.n_threads} threads, before it had {before.n_threads}")
        return found
