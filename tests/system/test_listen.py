"""Where the server listens, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.listen import Reach, is_loopback, open_listener
from tests.system.process import START_S, CorralProcess, wait_until


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def over(path: object) -> httpx.Client:
    return httpx.Client(
        transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=START_S
    )


def run(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S)


@pytest.fixture
def sock():
    """A path short enough for a socket, wherever tests keep their files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory) / "corral.sock"


def test_a_unix_socket_from_start_to_end(sock, tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--host", sock) as server:
        assert server.url == f"unix:{sock}"
        assert stat.S_IMODE(sock.stat().st_mode) & 0o007 == 0
        with over(sock) as http:
            answer = http.post("/completion", json={"prompt": "hello", "n_predict": 3}).json()
        assert answer["tokens_predicted"] == 3
        example = server.wait_for(r"try +(.*)$").strip()
        assert shlex.split(example)[:3] == ["curl", "--unix-socket", str(sock)]
        shown = subprocess.run(shlex.split(example), capture_output=True, text=True, timeout=START_S)
        assert '"choices"' in shown.stdout
        server.wait_for(r"POST /v1/chat/completions 200 .* unix, ")
        taken = run("-m", tiny, "--host", sock)
        assert taken.returncode == 1
        assert re.search(r"'.*\.sock'.* another server uses it; choose another --host", taken.stderr)
        with over(sock) as http:
            assert http.get("/health").status_code == 200
        assert server.stop() == 0
    assert not sock.exists()


@needs_ipv6
def test_several_addresses_and_a_socket(sock, tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--host", f"127.0.0.1,::1,{sock}") as server:
        port = server.url.rpartition(":")[2]
        assert server.url == f"http://127.0.0.1:{port}"
        for url in (server.url, f"http://[::1]:{port}"):
            assert httpx.get(f"{url}/props", timeout=START_S).status_code == 200
        server.wait_for(r"GET /props 200 .* ::1, ")
        with over(sock) as http:
            assert http.get("/health").status_code == 200
        assert server.stop() == 0
    assert not sock.exists()


def n_connections(server: CorralProcess) -> int:
    found = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


def test_a_client_that_does_nothing_is_cut_off(tiny, tmp_path):
    n_bytes = 256 << 20
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(n_bytes)
    options = ("-m", tiny, "-c", 512, "--timeout", 1, "--path", tmp_path)
    with CorralProcess(*options) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address, START_S) as client:
            client.sendall(b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
            with contextlib.suppress(ConnectionError):
                assert client.recv(1000) == b""
        server.wait_for(r"POST /completion 499 ")
        with socket.create_connection(address, START_S) as client:
            client.sendall(b"GET /large.bin HTTP/1.1\r\nhost: localhost\r\n\r\n")
            wait_until(lambda: n_connections(server) == 1)
            wait_until(lambda: n_connections(server) == 0)
            n = 0
            with contextlib.suppress(ConnectionError):
                while part := client.recv(1 << 20):
                    n += len(part)
            assert n < n_bytes
        assert server.complete(prompt="hello", n_predict=3)["tokens_predicted"] == 3


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CorralError, match=rf"port {port}: Address already in use.*--port"):
            open_listener(ServerSettings(port=port)).__enter__()


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("192.0.2.1", "not an address of this machine, choose another --host"),
        ("a" * 80, "choose another --host"),
        ("", "--host is empty"),
    ],
)
def test_a_host_that_is_not_ours(host, message):
    with pytest.raises(CorralError, match=message), open_listener(ServerSettings(host=host, port=0)):
        pass


def test_a_port_that_needs_privileges(monkeypatch):
    class Socket(socket.socket):
        def bind(self, _address) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Socket)
    with (
        pytest.raises(CorralError, match=r"port 80: Permission denied.*--port"),
        open_listener(ServerSettings(port=80)),
    ):
        pass


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "address"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("::", "[::]"), ("127.0.0.1", "127.0.0.1")]
)
def test_addresses(host, address):
    for cert, scheme in (("", "http"), ("c", "https")):
        settings = ServerSettings(host=host, port=0, ssl_cert_file=cert)
        with open_listener(settings) as listener:
            port = listener.sockets[0].getsockname()[1]
            assert port
            assert listener.address == f"{scheme}://{address}:{port}"


def test_all_addresses_of_a_name_have_the_same_port():
    with open_listener(ServerSettings(host="localhost", port=0)) as listener:
        assert len({sock.getsockname()[1] for sock in listener.sockets}) == 1
        assert len(listener.sockets) == len(socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM))


def test_one_address_that_cannot_be_used_closes_the_others(sock):
    settings = ServerSettings(host=f"{sock},192.0.2.1", port=0)
    with pytest.raises(CorralError, match=r"192\.0\.2\.1"), open_listener(settings):
        pass
    assert not sock.exists()


@needs_ipv6
def test_everybody_is_heard_on_two_colons():
    with open_listener(ServerSettings(host="::", port=0, api_keys=("key",))) as listener:
        port = listener.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), START_S).close()


class TestPublicAddress:
    @pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])
    @pytest.mark.parametrize("access", [{}, {"api_keys": ("k",)}, {"allow_unauthenticated": True}])
    def test_it_needs_no_key(self, host, access):
        with open_listener(ServerSettings(host=host, port=0, **access)) as listener:
            assert listener.reach is Reach.PUBLIC

    def test_an_address_decides_and_not_its_name(self, monkeypatch):
        """A name of this machine may lead to the network, and one of the network here."""
        found = []
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        for name, address, reach in (
            ("localhost", "0.0.0.0", Reach.PUBLIC),
            ("example.com", "127.0.0.1", Reach.LOCAL),
        ):
            found[:] = [(socket.AF_INET, 0, 0, "", (address, 0))]
            with open_listener(ServerSettings(host=name, port=0)) as listener:
                assert listener.reach is reach

    def test_loopback_needs_none(self, sock):
        with open_listener(ServerSettings(port=0)) as listener:
            assert listener.reach is Reach.LOCAL
        with open_listener(ServerSettings(host=str(sock))) as listener:
            assert listener.reach is Reach.UNIX

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo"])
    def test_loopback(self, address):
        assert is_loopback(address)

    @pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.0.1", "::ffff:10.0.0.1", "localhost", ""])
    def test_no_loopback(self, address):
        assert not is_loopback(address)


def exchange(server: CorralProcess, request: bytes) -> bytes:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, START_S) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    return answer


def test_pages_of_strangers(tiny):
    """By another name, from another origin, or with too much of it: all is refused, and told to the log."""
    with CorralProcess("-m", tiny, "-c", 512) as server:
        end = b"connection: close\r\n\r\n"
        for start in (
            b"GET /health HTTP/1.1\r\nhost: evil.example\r\n",
            b"GET http://evil.example/health HTTP/1.1\r\nhost: localhost\r\n",
            b"POST /completion HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n",
        ):
            answer = exchange(server, start + end)
            assert answer.startswith(b"HTTP/1.1 403 "), answer
            assert b'"type":"permission_error"' in answer
            server.wait_for(r" (/health|/completion) 403 ")
        answer = exchange(server, b"GET /health HTTP/1.1\r\n" + end)
        assert answer.startswith(b"HTTP/1.1 400 ")
        answer = exchange(server, b"GET /health HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        answer = exchange(server, b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 100_000)
        assert answer.startswith(b"HTTP/1.1 431 ")
        server.wait_for(r"disconnected 127\.0\.0\.1 with 431")
        origin = {"origin": "http://localhost:3000"}
        response = httpx.get(server.url + "/health", headers=origin, timeout=START_S)
        assert response.headers["access-control-allow-origin"] == origin["origin"]
        assert "x-request-id" in response.headers["access-control-expose-headers"].lower()


def test_a_public_address_without_a_key_serves_this_machine_and_warns(tiny):
    """The command of llama-server's Docker examples; what a client says of its own address does not count."""
    options = ("-m", tiny, "-c", 512, "--host", "0.0.0.0")
    with CorralProcess(*options, env={"FORWARDED_ALLOW_IPS": "*"}) as server:
        (warning,) = [line for line in server.lines if "warning: " in line]
        assert "--api-key" in warning
        assert "--allow-unauthenticated" in warning
        port = server.url.rpartition(":")[2]
        for name in ("127.0.0.1", "localhost", "0.0.0.0"):
            for path in ("/health", "/monitor/events"):
                response = httpx.head(f"http://{name}:{port}{path}", timeout=START_S)
                assert (response.status_code, response.content) == (200, b""), name
        head = b"GET /props HTTP/1.1\r\nconnection: close\r\n"
        answer = exchange(server, head + b"host: box\r\nx-forwarded-for: 203.0.113.5\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        server.wait_for(r"GET /props 200 .* 203\.0\.113\.5")
        answer = exchange(server, head + b"host: rebound.example\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"--allowed-hosts" in answer


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of others cannot be set here")
def test_a_server_without_descriptors_goes_on(tiny):
    with CorralProcess("-m", tiny, "-c", 512) as server:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 1 << 20)
        n_open = psutil.Process(pid).num_fds()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (n_open + 20, hard))
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        clients = [socket.create_connection(address, START_S) for _ in range(60)]
        server.wait_for("cannot accept connections: Too many open files")
        for client in clients:
            client.close()
        assert server.complete(prompt="hello", n_predict=3)["tokens_predicted"] == 3


class TestUnixSocket:
    @pytest.mark.parametrize(
        ("umask", "mode"), [(0o022, 0o640), (0o002, 0o660), (0o007, 0o660), (0o077, 0o600)]
    )
    def test_only_the_group_may_connect_if_the_umask_says_so(self, sock, umask, mode):
        before = os.umask(umask)
        try:
            with open_listener(ServerSettings(host=str(sock))):
                assert stat.S_IMODE(sock.stat().st_mode) == mode
        finally:
            os.umask(before)

    def test_a_stale_one_is_replaced_a_living_one_is_not(self, sock):
        settings = ServerSettings(host=str(sock))
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(sock))
        with open_listener(settings):
            inode = sock.stat().st_ino
            with pytest.raises(CorralError, match="another server uses it"), open_listener(settings):
                pass
            assert sock.stat().st_ino == inode
        assert not sock.exists()

    @pytest.mark.parametrize("make", [lambda path: path.write_text("mine"), lambda path: path.mkdir()])
    def test_what_is_no_socket_is_left_alone(self, sock, make):
        make(sock)
        with (
            pytest.raises(CorralError, match="exists and is not a socket"),
            open_listener(ServerSettings(host=str(sock))),
        ):
            pass
        assert sock.exists()

    def test_a_link_is_left_alone(self, sock):
        other = sock.with_name("other.sock")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(other))
        sock.symlink_to(other)
        with pytest.raises(CorralError, match="not a socket"), open_listener(ServerSettings(host=str(sock))):
            pass
        assert other.exists()

    @pytest.mark.parametrize("name", ["missing/x.sock", "x" * 200 + ".sock"])
    def test_a_path_that_cannot_be(self, tmp_path, name):
        with (
            pytest.raises(CorralError, match="--host"),
            open_listener(ServerSettings(host=str(tmp_path / name))),
        ):
            pass

    def test_the_file_of_a_successor_is_not_removed(self, sock):
        with open_listener(ServerSettings(host=str(sock))):
            sock.unlink()
            sock.write_text("another's")
        assert sock.read_text() == "another's"


def test_errors_come_before_anything_is_loaded(tmp_path):
    """A model that would end the server otherwise is never opened."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 64)
    result = run("-m", path, "--port", 0, "--host", "192.0.2.1")
    assert result.returncode == 1
    assert "--host" in result.stderr
    assert "load" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_second_ctrl_c_ends_it_at_once(tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--context-shift") as server:
        body = {"prompt": "hello", "n_predict": -1, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/completion", json=body, timeout=START_S) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGINT)
            server.wait_for("stopping after running requests are done; a second Ctrl-C .* at once")
            server.process.send_signal(signal.SIGINT)
            server.wait_for("stopping at once")
            assert server.process.wait(START_S) == 0
