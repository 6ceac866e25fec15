"""What the server accepts: addresses, sizes, and how many requests may wait."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from saccade.errors import ConfigError

__all__ = ["MIN_TOKEN", "Settings"]

MIN_TOKEN = 16
"""Fewest characters of a token."""


@dataclass(frozen=True)
class Settings:
    """Limits and addresses of the server.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for any free one.
        token: The secret that every request must carry; required unless `host` is a loopback
            address.
        allow_hosts: Further names that browsers may use for this server in the Host header.
        max_bytes: Largest picture in bytes.
        max_pixels: Largest picture in pixels, read from its header before it is decoded.
        max_queue: Requests that may wait for the model; more are refused with 503.
        max_batch: Pictures that are classified in one forward pass.
        timeout_s: Seconds that a request waits for its result.
        kept_bytes: Bytes of pictures that are kept in memory, the latest first.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    max_bytes: int = 10_000_000
    max_pixels: int = 25_000_000
    max_queue: int = 256
    max_batch: int = 64
    timeout_s: float = 30.0
    kept_bytes: int = 64_000_000

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < MIN_TOKEN or not self.token.isascii()):
            raise ConfigError(
                f"token must be at least {MIN_TOKEN} ASCII characters, got {len(self.token)}; "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
            )
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"token must be given to listen on {self.host!r}, which other machines can reach; "
                "set SACCADE_SERVE_TOKEN or --token"
            )
        for name in ("max_bytes", "max_pixels", "max_queue", "max_batch", "kept_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be positive, got {self.timeout_s}")

    def accepts_host(self, header: str) -> bool:
        """True if a Host header names this server.

        A page of another site that has its own name resolve to this address (DNS rebinding) sends
        its own name, which is refused. On a loopback address only loopback names pass. Elsewhere
        numeric addresses and this machine's name pass too.
        """
        name = _host_name(header)
        if name is None:
            return False
        if name in {"localhost", "127.0.0.1", "::1"} or name in self._known_names():
            return True
        return not is_loopback(self.host) and _is_address(name)

    def _known_names(self) -> set[str]:
        names = {self.host, *self.allow_hosts}
        if not is_loopback(self.host):
            names |= {socket.gethostname(), socket.getfqdn()}
        return {name.lower() for name in names}


def is_loopback(host: str) -> bool:
    """True for `localhost` and addresses that only this machine can reach."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(header: str) -> str | None:
    """The name in a Host header, without its port; None if the header is malformed."""
    if header.startswith("["):
        name, closing, port = header[1:].partition("]")
        port = port.removeprefix(":") if closing else "bad"
    else:
        name, _, port = header.partition(":")
    return name.lower() if name and (not port or port.isdigit()) else None
