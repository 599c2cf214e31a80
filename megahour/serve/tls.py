"""TLS keys of the model service: a folder with `tls.crt`, `tls.key` and `ca.crt`, as Kubernetes names them in secrets.

The service presents `tls.crt`; clients check it against `ca.crt`, and present their own `tls.crt` if the folder has
one. With mutual TLS the service accepts only clients with a certificate signed by `ca.crt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"


def server_options(folder: str, mutual: bool) -> dict[str, Any]:
    """TLS options of a Flight server. Raises ConfigError for a missing file."""
    if not folder:
        if mutual:
            raise ConfigError("mutual TLS needs a folder of keys", remedy="set engine.tls (--tls) as well")
        return {}
    options: dict[str, Any] = {"tls_certificates": [(_read(folder, CERTIFICATE), _read(folder, KEY))]}
    if mutual:
        options |= {"verify_client": True, "root_certificates": _read(folder, AUTHORITY)}
    return options


def client_options(folder: str) -> dict[str, Any]:
    """TLS options of a Flight client. Raises ConfigError for a missing file."""
    if not folder:
        return {}
    options = {"tls_root_certs": _read(folder, AUTHORITY)}
    if (Path(folder) / CERTIFICATE).exists():
        options |= {"cert_chain": _read(folder, CERTIFICATE), "private_key": _read(folder, KEY)}
    return options


def _read(folder: str, name: str) -> bytes:
    try:
        return (Path(folder) / name).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{Path(folder) / name}: {error.strerror}",
            where="engine.tls",
            remedy=f"put a folder with {CERTIFICATE}, {KEY} and {AUTHORITY} at the same path on every machine",
        ) from None
