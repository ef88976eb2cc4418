"""Options: concurrent requests."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("-np", "--parallel"),
        "number of slots: requests processed at the same time",
        env="LLAMA_ARG_N_PARALLEL",
        limits=(1, 256),
        target="engine.n_parallel",
    ),
    Option(
        ("--engines",),
        "engine processes of the same model, for machines with several NUMA nodes or GPUs, and to continue "
        "at once when one is lost; each has its own slots (-np) and context (-c), they share the weights and "
        "divide cores, --cache-ram, --cache-disk and --device",
        limits=(1, 64),
        target="server.n_engines",
    ),
    Option(
        ("--engines-min",),
        "engines that always run, of those of --engines; the others start while requests wait for a slot and "
        "end when they are idle; -1: all, 0: the last one ends, too",
        limits=(-1, 64),
    ),
    Option(
        ("--engines-wait-ms",), "time after which a request that waits is a reason for another engine", "MS"
    ),
    Option(
        ("--engines-idle-seconds",),
        "time without a request after which an engine beyond --engines-min ends",
        "S",
    ),
    Option(
        ("--ray",),
        "run the engines in the Ray cluster at this address instead of on this machine, which must be one of "
        "its nodes (corral cluster); the model's path must exist on all nodes",
        "HOST:PORT",
    ),
    Option(
        ("--ray-gpus",), "GPUs that Ray reserves for each engine and each of --rpc-workers", limits=(0, 64)
    ),
    Option(
        ("--rpc-workers",),
        "for models too big for one machine: RPC workers that Ray starts for each engine, on different nodes "
        "if there are enough; the layers are divided among their devices",
        limits=(0, 64),
    ),
    Option(
        ("--allow-insecure-cluster",),
        "join a Ray cluster at an address that is not private",
        negative=("--no-allow-insecure-cluster",),
    ),
    Option(
        ("--shared-storage",),
        "directory in which servers find each other that have the same directories for --chats, --responses, "
        "--batches, --journal, --slot-save-path and the same --ledger: each serves what another has stored, "
        "and continues its work when it is gone (default: none, other servers are kept out)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--shared-url",),
        "URL by which the other servers of --shared-storage reach this one, or unix: and the path of its "
        "socket (default: where it listens)",
        "URL",
    ),
    Option(
        ("-cb", "--cont-batching"),
        "evaluate prompts while answers are generated; otherwise prompts wait until all slots are done",
        negative=("-nocb", "--no-cont-batching"),
    ),
    Option(
        ("--batch-exact",),
        "on a CPU, evaluate only as many streams at once as round like a single one: answers do not depend "
        "on their number, and many streams are slower",
        negative=("--no-batch-exact",),
    ),
    Option(
        ("-kvu", "--kv-unified"),
        "one KV buffer shared by all slots, instead of one per slot",
        negative=("-no-kvu", "--no-kv-unified"),
    ),
    Option(
        ("--max-itl-ms",),
        "longest pause between two tokens of a running stream while prompts are evaluated",
        "MS",
        limits=(1, None),
    ),
)
