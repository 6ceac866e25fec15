"""Access control of the server, and the headers of every answer.

- The Host header must name this server, which prevents DNS rebinding.
- With a token, every request but `/healthz` needs it: in `Authorization: Bearer`, or in a cookie
  that the first visit with `?token=` sets.
- A request that changes something must not come from a page of another origin.
- Answers carry a strict content security policy. No page can be framed but reports, by this site.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

from saccade.serve.metrics import Metrics
from saccade.serve.settings import Settings

__all__ = ["POLICY", "REPORT_POLICY", "Guard"]

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
    """ASGI middleware.

    Args:
        app: The application behind it.
        settings: Hosts and token.
        metrics: Counts every request.
    """

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
