"""Self-signed certificates."""

from __future__ import annotations

import subprocess


def make_certificate(directory, name: str) -> tuple[str, str]:
    """A certificate for this machine that nobody but its own key has signed."""
    certificate, key = str(directory / f"{name}.crt"), str(directory / f"{name}.key")
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", key, "-out", certificate),
    )
    return certificate, key


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)
