"""`corral cluster`: start, stop and show the Ray cluster whose nodes run engines (`--ray`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from corral.cli.cluster_address import ALLOW, check_private
from corral.cli.table import print_table
from corral.core.errors import CorralError
from corral.fleet.ray import node
from corral.fleet.ray.join import PORT
from corral.fleet.ray.status import read_status


def run_cluster(args: Sequence[str]) -> int:
    options = _parse(args)
    match options.verb:
        case "up":
            _up(options)
        case "down":
            sys.stdout.write(f"{node.stop()} processes ended\n")
        case _:
            _print_status(options.address or node.running_address())
    return 0


def _parse(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="corral cluster", description="Run engines on several machines, with Ray.", allow_abbrev=False
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|down|status")
    up = verbs.add_parser(
        "up", help="start a cluster here, or have this machine join one", allow_abbrev=False
    )
    up.add_argument("--join", metavar="HOST:PORT", default="", help="the cluster to join")
    up.add_argument(
        "--host", metavar="ADDRESS", default="", help="this machine's address (default: 127.0.0.1)"
    )
    up.add_argument("--port", type=int, default=PORT, help=f"of a new cluster (default: {PORT})")
    up.add_argument(
        "--dashboard", action="store_true", help="of a new cluster: Ray's dashboard, also for `ray list`"
    )
    up.add_argument("--cpus", type=int, help="CPUs for engines; 0: none here (default: all)")
    up.add_argument("--gpus", type=int, help="GPUs for engines (default: all)")
    up.add_argument(ALLOW, action="store_true", help="also on an address that is not private")
    verbs.add_parser("down", help="end what `up` has started on this machine", allow_abbrev=False)
    status = verbs.add_parser("status", help="print nodes and engines", allow_abbrev=False)
    status.add_argument("address", metavar="HOST:PORT", nargs="?", default="")
    return parser.parse_args(args)


def _up(options: argparse.Namespace) -> None:
    is_allowed = options.allow_insecure_cluster
    if options.join:
        for address in filter(None, (options.join, options.host)):
            check_private(address, is_allowed)
        node.start_worker(options.join, options.host, options.cpus, options.gpus)
        sys.stdout.write(f"joined {options.join}\n")
        return
    host = options.host or "127.0.0.1"
    check_private(host, is_allowed)
    node.start_head(host, options.port, options.cpus, options.gpus, options.dashboard)
    sys.stdout.write(f"cluster {host}:{options.port} is up: corral --ray {host}:{options.port}\n")


def _print_status(address: str) -> None:
    if not address:
        raise CorralError("no cluster runs on this machine; name its address")
    status = read_status(address)
    out = Console(highlight=False)
    nodes = [(each.address, each.name, str(each.n_cpus), str(each.n_gpus)) for each in status.nodes]
    print_table(nodes, out, header=("node", "name", "CPUs", "GPUs"))
    engines = [(each.node, str(each.pid), each.model) for each in status.engines]
    print_table(engines, out, header=("engine on", "process", "model"))
