"""https, with certificates that openssl makes here."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings
from corral.server.tls import open_tls, reload_tls
from tests.system.certificate import make_certificate, openssl
from tests.system.process import START_S, CorralProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def server(pair, tiny):
    with CorralProcess(
        "-m", tiny, "-c", 512, "--ssl-cert-file", pair[0], "--ssl-key-file", pair[1]
    ) as server:
        yield server


def test_a_client_that_trusts_the_certificate(server, pair):
    assert server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=pair[0])
    with httpx.Client(verify=context, base_url=server.url, timeout=START_S) as http:
        assert http.get("/health").json()["status"] == "ok"
        body = {"prompt": "hello", "n_predict": 5, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/completion", json=body) as response:
            assert sum(line.startswith("data: ") for line in response.iter_lines()) >= 2


def test_curl(server, pair):
    assert shutil.which("curl")
    command = ["curl", "-sS", "--cacert", pair[0], server.url + "/health"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert '"status":"ok"' in result.stdout, result.stderr


def test_a_client_that_does_not_trust_it(server):
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(server.url + "/health", timeout=START_S)


def test_what_is_no_https_does_no_harm(server, pair):
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    for data in (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 600, b"\x00" * 9):
        with socket.create_connection(address, START_S) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(1000) if data else b""
            assert b"200" not in answer
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(address, START_S) as client, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(client)
    test_a_client_that_trusts_the_certificate(server, pair)


def served_certificate(server) -> bytes:
    """As a new connection sees it."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, START_S) as client, trusting.wrap_socket(client) as wrapped:
        return wrapped.getpeercert(binary_form=True)


def test_a_hangup_reloads_what_can_be_and_names_what_cannot(tiny, tmp_path):
    certificate, key = map(Path, make_certificate(tmp_path, "now"))
    new_certificate, new_key = map(Path, make_certificate(tmp_path, "next"))
    keys = tmp_path / "keys"
    keys.write_text("sk-1")
    options = ("-m", tiny, "-c", 512, "--ssl-cert-file", certificate, "--ssl-key-file", key)
    with CorralProcess(*options, "--api-key-file", keys) as server:
        old = served_certificate(server)
        new = ssl.PEM_cert_to_DER_cert(new_certificate.read_text())
        context = ssl.create_default_context(cafile=str(certificate))  # trusts the old one, and no other
        kept = httpx.Limits(keepalive_expiry=None)
        with httpx.Client(verify=context, base_url=server.url, timeout=START_S, limits=kept) as http:

            def status(api_key: str) -> int:
                body = {"content": "a"}
                return http.post("/tokenize", json=body, headers={"x-api-key": api_key}).status_code

            assert status("sk-1") == 200
            shutil.copy(new_certificate, certificate)  # the key is still the old one
            keys.write_text("sk-2")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("error: .*certificate.*: the key in --ssl-key-file '.*' does not match")
            server.wait_for("reloaded the keys of --api-key-file$")
            assert (served_certificate(server), status("sk-1"), status("sk-2")) == (old, 401, 200)
            certificate.unlink()
            keys.unlink()
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("error: .*keys.*: --api-key-file '.*' cannot be read")
            server.wait_for("error: .*certificate.*: --ssl-cert-file '.*' cannot be read")
            assert (served_certificate(server), status("sk-2")) == (old, 200)
            shutil.copy(new_certificate, certificate)
            shutil.copy(new_key, key)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reloaded the certificate of --ssl-cert-file$")
            assert served_certificate(server) == new != old
            assert status("sk-2") == 200  # on the connection that it has had all the while
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(server.url + "/health", verify=context, timeout=START_S)
        assert server.stop() == 0
    assert "".join(server.lines).count("reloaded") == 2


def test_a_hangup_with_nothing_to_reload_says_so(tiny):
    with CorralProcess("-m", tiny, "-c", 512, "--api-key", "sk-1") as server:
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("nothing to reload")
        assert server.get("/health").status_code == 200
        assert server.stop() == 0
    assert "reloaded" not in "".join(server.lines)


def test_what_cannot_be_used_is_not_loaded(pair, tmp_path):
    certificate, key = map(Path, make_certificate(tmp_path, "ours"))
    settings = ServerSettings(ssl_cert_file=str(certificate), ssl_key_file=str(key))
    context = open_tls(settings)
    good = certificate.read_text()
    for text in (good[: len(good) // 2], "", Path(pair[0]).read_text()):
        certificate.write_text(text)
        with pytest.raises(CorralError, match="--ssl-cert-file"):
            reload_tls(context, settings)
        assert shakes_hands(context)
    certificate.write_text(good)
    reload_tls(context, settings)
    assert shakes_hands(context)


def shakes_hands(context: ssl.SSLContext) -> bool:
    """Whether a client gets through, in memory."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [trusting.wrap_bio(one, other), context.wrap_bio(other, one, server_side=True)]
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return sides[0].version() is not None


def test_one_file_alone_is_an_error(pair):
    with pytest.raises(CorralError, match=r"--ssl-\w+-file requires --ssl-\w+-file"):
        open_tls(ServerSettings(ssl_cert_file=pair[0]))
    with pytest.raises(CorralError, match=r"--ssl-\w+-file requires --ssl-\w+-file"):
        open_tls(ServerSettings(ssl_key_file=pair[1]))
    assert open_tls(ServerSettings()) is None


def test_files_that_cannot_be_used(pair, tmp_path):
    certificate, key = pair
    _, other_key = make_certificate(tmp_path, "other")
    encrypted, broken, missing = tmp_path / "encrypted.key", tmp_path / "broken.crt", str(tmp_path / "none")
    openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", str(encrypted))
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for files, message in (
        ((certificate, other_key), "the key in --ssl-key-file '.*' does not match"),
        ((key, key), "--ssl-cert-file '.*' contains no certificate in PEM"),
        ((certificate, certificate), "--ssl-key-file '.*' contains no private key in PEM"),
        ((missing, key), "--ssl-cert-file '.*' cannot be read: No such file"),
        ((certificate, missing), "--ssl-key-file '.*' cannot be read: No such file"),
        ((certificate, str(tmp_path)), "--ssl-key-file '.*' cannot be read: Is a directory"),
        ((certificate, str(encrypted)), "--ssl-key-file is encrypted"),
        ((str(broken), key), "--ssl-cert-file '.*' and --ssl-key-file '.*' cannot be used: "),
    ):
        with pytest.raises(CorralError, match=message):
            open_tls(ServerSettings(ssl_cert_file=files[0], ssl_key_file=files[1]))


def test_a_key_that_does_not_fit_ends_the_command(pair, tmp_path):
    _, other_key = make_certificate(tmp_path, "other")
    command = [sys.executable, "-m", "corral", "--ssl-cert-file", pair[0], "--ssl-key-file", other_key]
    result = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert result.returncode == 2
    assert "does not match" in result.stderr
    assert "loading" not in result.stderr
    assert "Traceback" not in result.stderr


def test_https_on_a_unix_socket(pair, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "t.sock"
    options = ("-m", tiny, "-c", 512, "--host", path, "--ssl-cert-file", pair[0], "--ssl-key-file", pair[1])
    with CorralProcess(*options) as server:
        assert "https://localhost/" in server.wait_for(r"try +(.*)$")
        transport = httpx.HTTPTransport(uds=str(path), verify=ssl.create_default_context(cafile=pair[0]))
        with httpx.Client(transport=transport, timeout=START_S) as http:
            assert http.get("https://localhost/health").status_code == 200
