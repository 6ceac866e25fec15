"""Access control of the server, and the headers of every answer.

- The Host header must name this server, which prevents DNS rebinding.
- With a token, every request but `/healthz` needs it: in `Authorization: Bearer`, or in a cookie
  that the first visit with `?token=` sets.
- A request that changes something must not come from a page of another origin.
- Answers carry a strict content security policy. No page can be framed but reports, by this site.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

from saccade.errors import ConfigError
from saccade.serve.batching import Metrics

__all__ = ["MIN_TOKEN", "POLICY", "REPORT_POLICY", "Guard", "Settings"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "frame-ancestors 'self'; sandbox allow-scripts"
"""For reports, which carry a policy with the hash of their script in the page itself."""

COOKIE = "saccade_token"
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
)


class Guard:
    """ASGI middleware."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on and add the headers to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *HEADERS]
                if b"content-security-policy" not in names:
                    policy = (b"content-security-policy", POLICY.encode())
                    message["headers"].append(policy)
                if b"cache-control" not in names:
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        try:
            headers = _headers(scope)
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await _answer(send_guarded, *refusal)
            elif cookie := self._new_cookie(scope):
                await _redirect(send_guarded, scope, cookie)
            else:
                await self.app(scope, receive, send_guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in {"GET", "POST", "HEAD"} else "other"
            self.metrics.request_done(method, route, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and reason if the request is refused."""
        host = headers.get("host", "")
        if not self.settings.accepts_host(host):
            return 421, (
                "the Host header must name this server; open it by its address, or start it with "
                "--allow-host"
            )
        if scope["method"] not in SAFE_METHODS and _is_foreign(headers, host):
            return 403, "requests that send something must come from this server's own page"
        if not self._has_token(scope, headers):
            return 401, "a token is needed: open the address that `saccade serve` printed"
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        token = self.settings.token
        if token is None or scope["path"] == "/healthz":
            return True
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = [
            bearer.strip() if kind.lower() == "bearer" else "",
            _cookie(headers),
            _token_in(scope),
        ]
        return any(hmac.compare_digest(one.encode(), token.encode()) for one in given)

    def _new_cookie(self, scope: Scope) -> str | None:
        """The cookie for a visit of the page with the token in its address."""
        if self.settings.token is None or scope["path"] != "/" or not _token_in(scope):
            return None
        return f"{COOKIE}={self.settings.token}; Path=/; HttpOnly; SameSite=Strict"


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _is_foreign(headers: dict[str, str], host: str) -> bool:
    """True if a browser says that the request comes from another origin."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}


def _cookie(headers: dict[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else str(found.value)


def _token_in(scope: Scope) -> str:
    query: dict[str, list[str]] = parse_qs(scope["query_string"].decode("latin-1"))
    return query.get("token", [""])[0]


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, scope: Scope, cookie: str) -> None:
    """Go to the page without the token in its address, so that it stays out of the history."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    query.pop("token")
    place = "/" + (f"?{urlencode(query, doseq=True)}" if query else "")
    headers = [(b"location", place.encode()), (b"set-cookie", cookie.encode())]
    headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


MIN_TOKEN = 16
"""Fewest characters of a token."""


@dataclass(frozen=True)
class Settings:
    """Limits and addresses of the server.

    Attributes:
        port: The port to listen on; 0 for any free one.
        token: The secret that every request must carry; required unless `host` is a loopback
            address.
        allow_hosts: Further names that browsers may use for this server in the Host header.
        max_bytes: Largest picture in bytes.
        max_pixels: Largest picture in pixels, read from its header before it is decoded.
        max_queue: Requests that may wait for the model; more are refused with 503.
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
