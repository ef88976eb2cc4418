"""Check the TLS certificate and key before anything is loaded, and again when they are renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

from corral.core.errors import CorralError
from corral.core.settings import ServerSettings

_CERTIFICATE = b"CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"


def open_tls(server: ServerSettings) -> ssl.SSLContext | None:
    """Return the TLS context, or None without TLS. Raises CorralError that names the option at fault."""
    certificate, key = server.ssl_cert_file, server.ssl_key_file
    if not certificate and not key:
        return None
    if not certificate or not key:
        given, missing = ("--ssl-cert-file", "--ssl-key-file")[:: 1 if certificate else -1]
        raise CorralError(f"{given} requires {missing} too")
    _check(certificate, "--ssl-cert-file", _CERTIFICATE, "certificate")
    _check(key, "--ssl-key-file", _KEY, "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    return context


def reload_tls(context: ssl.SSLContext, server: ServerSettings) -> None:
    """Use the current files for new connections. Raises CorralError, and keeps the old ones, if they are
    invalid."""
    open_tls(server)  # check first: an invalid pair would leave the context half changed
    _load(context, server.ssl_cert_file, server.ssl_key_file)


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"the key in --ssl-key-file '{key}' does not match the certificate in --ssl-cert-file"
        else:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            message = f"--ssl-cert-file '{certificate}' and --ssl-key-file '{key}' cannot be used: {reason}"
        raise CorralError(message) from None
    except OSError as error:  # removed since the check
        raise CorralError(f"--ssl-cert-file '{certificate}' cannot be read: {error.strerror}") from None


def _check(path: str, option: str, mark: bytes, what: str) -> None:
    try:
        if mark not in Path(path).read_bytes():
            raise CorralError(f"{option} '{path}' contains no {what} in PEM")
    except OSError as error:
        raise CorralError(f"{option} '{path}' cannot be read: {error.strerror}") from None


def _refuse_password() -> str:
    """Refuse an encrypted key; OpenSSL would prompt at the terminal."""
    raise CorralError("the key in --ssl-key-file is encrypted; use one without a passphrase")
