"""Keys of the model service: a folder with `tls.crt`, `tls.key` and `ca.crt`, as Kubernetes' secrets name them.

The service shows `tls.crt`; clients check it by `ca.crt`, and show their own `tls.crt` where the folder has one. A
service that asks for both sides' (mutual TLS) takes only clients whose certificate `ca.crt` has signed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"


def server_options(folder: str, mutual: bool) -> dict[str, Any]:
    """What Flight's server takes. Raises ConfigError for a file that is not there."""
    if not folder:
        if mutual:
            raise ConfigError("mutual TLS without a folder of keys", remedy="give engine.tls (--tls) as well")
        return {}
    options: dict[str, Any] = {"tls_certificates": [(_read(folder, CERTIFICATE), _read(folder, KEY))]}
    if mutual:
        options |= {"verify_client": True, "root_certificates": _read(folder, AUTHORITY)}
    return options


def client_options(folder: str) -> dict[str, Any]:
    """What Flight's client takes. Raises ConfigError for a file that is not there."""
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
            remedy=f"a folder with {CERTIFICATE}, {KEY} and {AUTHORITY} on every machine, at the same path",
        ) from None
