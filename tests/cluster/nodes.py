"""`python -m tests.cluster.nodes`: three Ray nodes on this machine, with one CPU each, until stdin is closed.

Prints the cluster's address. "remove" on stdin takes a node away, "add" adds one. In a process of its own,
for Ray sets signal handlers.
"""

from __future__ import annotations

import sys

from corral.fleet.ray.join import import_ray

_HOST = "127.0.0.1"
_NODE = {
    "num_cpus": 1,
    "node_ip_address": _HOST,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}


def main() -> None:
    import_ray(_HOST)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=_NODE)
    workers = [cluster.add_node(**_NODE) for _ in range(2)]
    _say(cluster.address)
    for line in sys.stdin:
        if line == "add\n":
            workers.append(cluster.add_node(**_NODE))
        else:
            cluster.remove_node(workers.pop(), allow_graceful=False)
        _say("done")
    cluster.shutdown()


def _say(text: str) -> None:
    sys.stdout.write(f"corral: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
