"""TLS of a Ray cluster: what does not fit is found before Ray waits for it. Ray itself: tests/cluster."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from corral.core.errors import CorralError
from corral.fleet.ray import tls
from tests.system.certificate import make_certificate

HOST = "127.0.0.1"
SETTINGS_FRAME = bytes.fromhex("000000040000000000")  # with which an HTTP/2 server begins


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two certificates with their keys; each is its own authority."""
    folder = tmp_path_factory.mktemp("tls")
    return [make_certificate(folder, name) for name in ("ours", "other")]


@pytest.fixture
def use(monkeypatch):
    for name in ("RAY_USE_TLS", *tls.FILES):
        monkeypatch.delenv(name, raising=False)

    def use(certificate: str, key: str, authority: str) -> None:
        monkeypatch.setenv("RAY_USE_TLS", "1")
        for name, path in zip(tls.FILES, (certificate, key, authority), strict=True):
            monkeypatch.setenv(name, path)

    return use


@contextlib.contextmanager
def head(pair: tuple[str, str] | None) -> Iterator[int]:
    """A server that admits clients with the same certificate; None: any client, without TLS."""
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener, pair))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def _answer(listener: socket.socket, pair: tuple[str, str] | None) -> None:
    client, _ = listener.accept()
    with client, contextlib.suppress(OSError):
        if pair is None:
            client.sendall(SETTINGS_FRAME)
            client.recv(1)
            return
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=pair[0])
        context.load_cert_chain(*pair)
        context.verify_mode = ssl.CERT_REQUIRED
        with context.wrap_socket(client, server_side=True) as secure:
            secure.sendall(SETTINGS_FRAME)
            secure.recv(1)


def test_a_cluster_with_the_same_authority_is_joined(pairs, use):
    use(*pairs[0], pairs[0][0])
    tls.check_files()
    with head(pairs[0]) as port:
        tls.check_cluster(HOST, port)


def test_a_cluster_without_tls_is_joined_without(use):
    tls.check_files()
    with head(None) as port:
        tls.check_cluster(HOST, port)


def test_what_the_cluster_does_not_use_is_refused(pairs, use):
    with head(pairs[0]) as port, pytest.raises(CorralError, match=r"RAY_USE_TLS"):
        tls.check_cluster(HOST, port)
    use(*pairs[0], pairs[0][0])
    with head(None) as port, pytest.raises(CorralError, match=f"{HOST}:{port}"):
        tls.check_cluster(HOST, port)


def test_certificates_of_others_are_refused(pairs, use):
    (ours, key), (other, other_key) = pairs
    use(ours, key, other)
    with head(pairs[0]) as port, pytest.raises(CorralError, match=f"{HOST}:{port}"):
        tls.check_cluster(HOST, port)
    use(other, other_key, ours)
    with head(pairs[0]) as port, pytest.raises(CorralError, match=f"{HOST}:{port}"):
        tls.check_cluster(HOST, port)


@pytest.mark.parametrize("n", range(3))
def test_files_that_cannot_be_used_are_named(pairs, use, monkeypatch, n):
    use(*pairs[0], pairs[0][0])
    for path in ("", "/none.pem"):
        monkeypatch.setenv(tls.FILES[n], path)
        with pytest.raises(CorralError, match=tls.FILES[n]):
            tls.check_files()
    monkeypatch.setenv(tls.FILES[n], pairs[1][1])  # the key of another
    with pytest.raises(CorralError, match=tls.FILES[n]):
        tls.check_files()


def test_a_cluster_that_does_not_answer_is_refused(use):
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CorralError, match=f"{HOST}:{port}"):
        tls.check_cluster(HOST, port)
