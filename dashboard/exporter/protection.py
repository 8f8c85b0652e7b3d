"""Who may scrape."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from npuscope.errors import UsageError

from .passwords import Hashed


@dataclass(frozen=True, slots=True)
class Protection:
    """`certificate` and `key` for TLS, `client_ca` where clients must show a certificate of
    theirs, `users` for basic authentication."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    users: dict[str, Hashed] | None = None

    def tls(self) -> ssl.SSLContext | None:
        """TLS of a server; None without a certificate. Raises UsageError where files cannot be
        used."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # as errors of ssl are
            raise UsageError(
                f"--tls-cert, --tls-key or --client-ca cannot be used: {error}"
            ) from error
        return context
