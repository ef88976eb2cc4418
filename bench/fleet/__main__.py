"""`python -m bench.fleet`: what placement saves, compared with other policies and with one giant cache."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from bench.fleet.policy import CachedPrefix, ConsistentHash, LeastLoaded, Policy, RoundRobin, TextTree
from bench.fleet.simulation import simulate
from bench.fleet.workload import Scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=Scale().n_engines)
    parser.add_argument("--users", type=int, default=Scale().n_users)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    scale = replace(Scale(), n_engines=given.engines, n_users=given.users)
    n = scale.n_engines
    giant = replace(scale, n_engines=1, n_slots=n * scale.n_slots, n_cached_blocks=n * scale.n_cached_blocks)
    least = simulate(giant, RoundRobin(), given.seed)
    print(f"{n} engines, {scale.n_users} users, {least.n_turns} requests, {least.n_prompt:,} prompt tokens")
    print(f"one giant cache evaluates {least.n_evaluated:,} tokens\n")
    print("| policy | evaluated tokens | giant cache | wait p50 | p99 | busiest engine |")
    print("| --- | --- | --- | --- | --- | --- |")
    policies: dict[str, Policy] = {
        "cached prefix (Corral)": (own := CachedPrefix(n)),
        "text tree": TextTree(n),
        "consistent hashing": ConsistentHash(n),
        "least loaded": LeastLoaded(),
        "round robin": RoundRobin(),
    }
    for name, policy in policies.items():
        began = time.perf_counter()
        outcome = simulate(scale, policy, given.seed)
        seconds = time.perf_counter() - began
        print(
            outcome.line(name, least.n_evaluated),
            f" {seconds * 1e6 / outcome.n_turns:.0f} us a request",
            flush=True,
        )
        if policy is own:
            print(f"placing: {own.placing_s * 1e6 / outcome.n_turns:.0f} us a request")


if __name__ == "__main__":
    main()
