"""Calls of a frontend's or a router's HTTP API, which are sent again while it restarts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlsplit

import httpx

from penstock.errors import PenstockError, RefusedError, StreamBrokenError, UnavailableError, UnreachableError

DEFAULT_SERVER = "http://127.0.0.1:8000"

# Bounds of what is read, in bytes: of an answer, of a refusal and of one event of a stream.
_MAX_ANSWER, _MAX_REFUSAL, _MAX_EVENT = 64 << 20, 64 << 10, 1 << 20

# Seconds until a connection is made, until a question is answered, and until a call is sent again: doubled each time.
_CONNECT, _ANSWER, _FIRST_WAIT, _LONGEST_WAIT = 5.0, 30.0, 0.25, 4.0

_NAME_ONE = "name a frontend or a router with PENSTOCK_SERVER"

_log = logging.getLogger("penstock")
_T = TypeVar("_T")


class _GenerateRequired(TypedDict):
    token_ids: list[int]
    worker_id: int
    dp_rank: int


class GenerateEvent(_GenerateRequired, total=False):
    """One event of an answer. ``cached_tokens`` come with the first or last one, ``finish_reason`` with the last."""

    cached_tokens: int
    finish_reason: str


class Server:
    """A frontend or router. ``url`` and ``api_key`` are by default those of the environment."""

    def __init__(
        self, url: str | None, api_key: str | None, attempts: int, ssl_context: ssl.SSLContext | None
    ) -> None:
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        self.url = _clean_url(url or os.environ.get("PENSTOCK_SERVER") or DEFAULT_SERVER)
        self.failures = 0  # calls after which what was learned of the fleet may not hold any more
        self._key = api_key or os.environ.get("PENSTOCK_API_KEY")
        self._attempts = attempts
        self._ssl = ssl_context
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, path: str) -> Any:
        return await self.repeat(lambda: self.ask("GET", path, None))

    async def post(self, path: str, body: object) -> Any:
        return await self.repeat(lambda: self.ask("POST", path, body))

    async def stream(self, path: str, body: object) -> AsyncGenerator[GenerateEvent, None]:
        """Return the events of an answer once a worker has accepted the request."""
        response = await self.repeat(lambda: self._send("POST", path, body, None))
        events = self._read_events(response)
        # A generator which has begun closes the connection even if its caller drops it unread.
        await events.__anext__()
        return events

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    async def repeat(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return what a call returns; make it again if it fails in a way that may pass."""
        wait = _FIRST_WAIT
        for attempt in range(1, self._attempts + 1):
            try:
                return await call()
            except (UnreachableError, RefusedError) as error:
                if attempt == self._attempts or isinstance(error, RefusedError) and not error.retryable:
                    raise
                after = error.retry_after if isinstance(error, RefusedError) else 0
                # Clients which lost the same server do not all come back at once.
                pause = max(random.uniform(wait / 2, wait), min(after, _LONGEST_WAIT))
                _log.warning("%s; attempt %d of %d in %.1f s", error, attempt + 1, self._attempts, pause)
            await asyncio.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    def _client(self) -> httpx.AsyncClient:
        """Return the connections of the running event loop: those of another one cannot be used."""
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            headers = {"accept-encoding": "identity", "content-type": "application/json"}
            if self._key:
                headers["authorization"] = "Bearer " + self._key
            verify = (self._ssl or ssl.create_default_context()) if self.url.startswith("https:") else False
            transport = httpx.AsyncHTTPTransport(
                verify=verify,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30),
                socket_options=_keep_alive(),
            )
            # The key is for one server only: no redirects, and by the transport no proxy of the environment.
            self._http = httpx.AsyncClient(transport=transport, headers=headers)
            self._loop = loop
        return self._http

    async def _send(self, method: str, path: str, body: object, timeout: float | None) -> httpx.Response:
        """Return the response of a call which the server accepts."""
        http = self._client()
        content = None if body is None else json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        limits = httpx.Timeout(_ANSWER, connect=_CONNECT, read=timeout)
        request = http.build_request(method, self.url + path, content=content, timeout=limits)
        try:
            response = await http.send(request, stream=True)
            if response.status_code == 200:
                return response
            try:
                raise self._refusal(response, await _read(response, _MAX_REFUSAL))
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def ask(self, method: str, path: str, body: object) -> Any:
        """Make a call once, and return its answer."""
        response = await self._send(method, path, body, _ANSWER)
        try:
            return json.loads(await _read(response, _MAX_ANSWER))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise PenstockError(f"{self.url} did not answer as a Penstock does: {_NAME_ONE}") from error
        finally:
            await response.aclose()

    def other_version(self, error: Exception) -> PenstockError:
        """Return the error of an answer which lacks what error says."""
        return PenstockError(f"{self.url} is of another version than this package: {error!r}")

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        self.failures += 1
        cause = str(error) or type(error).__name__
        return UnreachableError(f"no answer from {self.url} ({cause}): start `penstock up`, or {_NAME_ONE}")

    def _refusal(self, response: httpx.Response, body: bytes) -> RefusedError:
        """Return the error of a response whose status is not 200."""
        status, code = response.status_code, ""
        message = f"{self.url} answered {status}"
        try:
            error = json.loads(body)["error"]
            message, code = str(error["message"]), str(error["code"] or "")
        except (ValueError, TypeError, KeyError):
            if status in (404, 405):
                message += f": it has no router API; {_NAME_ONE}"
        if status in (401, 403):
            message += "; PENSTOCK_API_KEY must be a key with admin: true"
        if status == 404:
            self.failures += 1  # the fleet may serve other models now
        kind = UnavailableError if status == 503 else RefusedError
        after = response.headers.get("retry-after", "")
        retryable = response.headers.get("x-should-retry") == "true"
        return kind(message, status, code, retryable, float(after) if after.isdecimal() else 0)

    async def _read_events(self, response: httpx.Response) -> AsyncGenerator[GenerateEvent, None]:
        """Yield an empty event, then those of a stream; fail if it has no end."""
        tokens, ended = 0, False
        try:
            yield GenerateEvent(token_ids=[], worker_id=0, dp_rank=0)
            async for data in _read_lines(response):
                if data == b"[DONE]":
                    ended = True  # the connection can be used again once the body has ended too
                    continue
                event = json.loads(data)
                if "error" in event:
                    self.failures += 1
                    raise StreamBrokenError(_broke_off(tokens, event["error"]["message"]), tokens)
                tokens += len(event["token_ids"])
                yield event
        except httpx.TransportError as error:
            if not ended:
                self.failures += 1
                raise StreamBrokenError(_broke_off(tokens, str(error) or type(error).__name__), tokens) from error
        except (ValueError, TypeError, KeyError) as error:
            raise StreamBrokenError(_broke_off(tokens, "an event is not what this version expects"), tokens) from error
        finally:
            await response.aclose()
        if not ended:
            raise StreamBrokenError(_broke_off(tokens, "the server closed the connection"), tokens)


def _broke_off(tokens: int, cause: str) -> str:
    return f"the answer broke off after {tokens} tokens ({cause}): send the request again, or go on from these tokens"


async def _read(response: httpx.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise PenstockError(f"{response.url} answered with more than {limit} bytes")
    return bytes(body)


async def _read_lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the data of the events of a stream; each has one line of it."""
    rest = b""
    async for chunk in response.aiter_raw():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_EVENT:
            raise ValueError(f"an event of more than {_MAX_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _clean_url(server: str) -> str:
    """Return a URL without the /v1 at its end which clients of the OpenAI API include."""
    url = server if "://" in server else "http://" + server
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"PENSTOCK_SERVER: {server[:100]!r} is not a URL like {DEFAULT_SERVER}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _keep_alive() -> list[tuple[int, int, int]]:
    """Return socket options by which a host that is gone ends a stream which waits for its next token."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), seconds))
    return options
