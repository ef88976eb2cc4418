"""`corral cluster`: a cluster of one node, with TLS, and what it refuses."""

from __future__ import annotations

import socket
import stat

import psutil
import pytest

from corral.fleet.ray.node import marked_processes
from corral.fleet.ray.tls import FILES
from tests.system.certificate import make_certificate
from tests.system.process import CorralProcess, run_corral
from tests.tools.wait import wait_until


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def tls(tmp_path):
    certificate, key = make_certificate(tmp_path, "node")
    files = dict(zip(FILES, (certificate, key, certificate), strict=True))
    return {"RAY_USE_TLS": "1", **files, "HOME": str(tmp_path)}


def test_up_status_down(port, tmp_path, monkeypatch, tls, tiny):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def cluster(*arguments: object) -> str:
        done = run_corral("cluster", *arguments, **tls)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        cluster("up", "--port", port, "--cpus", 3)
        token = tmp_path / ".ray" / "auth_token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert {address for _, address in marked_processes()} == {f"127.0.0.1:{port}"}
        assert run_corral("cluster", "up", "--port", port, **tls).returncode == 1
        rows = [line.split() for line in cluster("status").splitlines()]
        assert [row[2] for row in rows if row[0] == "127.0.0.1"] == ["3"]
        listening = {
            each.laddr.ip.removeprefix("::ffff:")
            for process, _ in marked_processes()
            for each in process.net_connections("inet")
            if each.status == "LISTEN"
        }
        assert listening == {"127.0.0.1"}
        without = run_corral("cluster", "status", **{**tls, "RAY_USE_TLS": "0"})
        assert without.returncode == 1
        assert "RAY_USE_TLS" in without.stderr
        with CorralProcess("-m", tiny, "-c", 512, "-t", 1, "--ray", f"127.0.0.1:{port}", env=tls) as server:
            assert server.complete(prompt="hello", n_predict=4, ignore_eos=True)["tokens_predicted"] == 4
    finally:
        found = [
            each for process, _ in marked_processes() for each in (process, *process.children(recursive=True))
        ]
        cluster("down")
    wait_until(lambda: not any(map(_is_running, found)), 0.1)


def test_public_addresses_are_refused(tiny):
    for command in (
        ["cluster", "up", "--host", "198.51.100.1"],
        ["cluster", "up", "--join", "198.51.100.1:6379"],
        ["--ray", "198.51.100.1:6379", "-m", tiny],
    ):
        refused = run_corral(*command)
        assert refused.returncode == 1
        assert "--allow-insecure-cluster" in refused.stderr


def test_a_cluster_that_does_not_answer_ends_the_start(port, tiny):
    refused = run_corral("--port", 0, "--ray", f"127.0.0.1:{port}", "-m", tiny)
    assert refused.returncode == 1
    assert f"127.0.0.1:{port}" in refused.stderr
