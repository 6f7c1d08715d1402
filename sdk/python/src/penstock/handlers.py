"""A Python function behind the HTTP protocol of docs/format/python.md: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.checks import integer, text
from penstock.errors import UnavailableError

# Bounds of what is read, in bytes, and of the connections.
_MAX_HEAD, _MAX_BODY, _MAX_CONNECTIONS = 64 << 10, 64 << 20, 4096
# Seconds in which a request must arrive once its connection is open.
_PATIENCE = 60.0

_log = logging.getLogger("penstock")


@dataclass(frozen=True)
class ModelCard:
    """What a function serves.

    ``name`` is the model's name for clients, ``path`` the directory or the Hugging Face name of the checkpoint whose
    tokenizer and chat template make its prompts. ``block_size`` is in tokens. ``total_blocks`` is the capacity of its
    KV cache, 0 if it has none. ``context_length`` None is the checkpoint's.
    """

    name: str
    path: str
    block_size: int = 16
    total_blocks: int = 0
    context_length: int | None = None

    def __post_init__(self) -> None:
        text("name", self.name)
        text("path", self.path)
        integer(2, 65536)("block_size", self.block_size)
        integer(0, 2**31 - 1)("total_blocks", self.total_blocks)
        if self.context_length is not None:
            integer(2, 2**31 - 1)("context_length", self.context_length)

    def models(self) -> dict[str, Any]:
        """Return the answer of /v1/models."""
        row = {"id": self.name, "object": "model", "owned_by": "penstock-python", "root": self.path}
        sizes = {"block_size": self.block_size, "blocks": self.total_blocks, "max_model_len": self.context_length or 0}
        return {"object": "list", "data": [{**row, **sizes}]}


class Context:
    """What a handler knows of its request besides the request."""

    def __init__(self, request_id: str) -> None:
        self._id = request_id
        self._cancelled = asyncio.Event()

    def id(self) -> str:
        """Return the id of the request, with its attempt."""
        return self._id

    def is_cancelled(self) -> bool:
        """Say whether no more tokens are wanted. The handler's task is cancelled too."""
        return self._cancelled.is_set()

    is_stopped = is_killed = is_cancelled

    async def async_killed_or_stopped(self) -> None:
        """Return once no more tokens are wanted."""
        await self._cancelled.wait()

    def cancel(self) -> None:
        self._cancelled.set()


# A handler returns dicts with ``token_ids`` and, where they are known, ``finish_reason`` and ``cached_tokens``.
Handler = Callable[[dict[str, Any], Context], AsyncIterator[Mapping[str, Any]]]


class _BadRequest(Exception):
    pass


class _WorkerGone(Exception):
    pass


class HandlerServer:
    """An HTTP server on this machine, for one worker. Every call shows ``key``."""

    def __init__(self, handler: Handler, card: ModelCard, key: str) -> None:
        self._handler = handler
        self._card = card
        self._key = ("Bearer " + key).encode()
        self._calls: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._closed = False

    async def start(self) -> str:
        """Listen, and return the URL."""
        # As many as may be open can come at once, when another worker has died.
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, limit=_MAX_HEAD, backlog=_MAX_CONNECTIONS
        )
        return "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all calls, and wait for their handlers."""
        self._closed = True
        self._server.close()
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def filenos(self) -> list[int]:
        """Return the descriptors of the sockets which are open."""
        sockets = [*self._server.sockets, *(writer.get_extra_info("socket") for writer in self._calls.values())]
        return [number for one in sockets if (number := one.fileno()) >= 0]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._calls) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._calls[task] = writer
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # of close: a task of asyncio.start_server which ends with it is logged
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the worker is gone, or is none
        except asyncio.TimeoutError:  # another class before Python 3.11
            pass
        finally:
            del self._calls[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request: a connection has one, so that its end is the end of the call."""
        try:
            method, path, body = await asyncio.wait_for(self._read_request(reader), _PATIENCE)
            if self._closed:  # the connection came just before, or wait_for lost the cancellation (before Python 3.12)
                return
            if (method, path) == ("POST", "/generate"):
                request = json.loads(body)
                if not isinstance(request, dict) or not isinstance(request.get("token_ids"), list):
                    raise _BadRequest(400, "the body has no token_ids")
                await self._generate(request, reader, writer)
                return
            if method != "GET" or path not in ("/health", "/v1/models"):
                raise _BadRequest(404, "there is no such path")
            status, answer = 200, self._card.models() if path == "/v1/models" else {}
        except _BadRequest as error:
            status, answer = error.args[0], {"error": {"message": error.args[1], "code": error.args[0]}}
        except (ValueError, RecursionError):  # the latter of lists in lists
            status, answer = 400, {"error": {"message": "the request cannot be read", "code": 400}}
        content = json.dumps(answer).encode()
        writer.write(_head(status, "application/json", f"Content-Length: {len(content)}") + content)
        await writer.drain()

    async def _read_request(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        method, path, _ = head[0].decode("ascii").split(" ")
        headers: dict[bytes, bytes] = {}
        for line in head[1:]:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._key):
            raise _BadRequest(401, "the key is another one")
        length = int(headers.get(b"content-length", b"0"))
        if not 0 <= length <= _MAX_BODY:
            raise _BadRequest(413, f"the body has more than {_MAX_BODY} bytes")
        return method, path, await reader.readexactly(length)

    async def _generate(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Write what the handler yields, until the connection ends."""
        context = Context(str(request.pop("request_id", "")))
        call = asyncio.create_task(self._write_events(request, context, writer))
        ended = asyncio.create_task(reader.read(1))  # nothing follows a request but the end
        try:
            await asyncio.wait({call, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not context.is_cancelled():  # else a write has seen the end, and the handler may be cleaning up
                context.cancel()
                call.cancel()
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError, _WorkerGone):
                await call
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await ended

    async def _write_events(self, request: dict[str, Any], context: Context, writer: asyncio.StreamWriter) -> None:
        async def drain() -> None:
            try:
                await writer.drain()
            except ConnectionError as error:
                context.cancel()
                raise _WorkerGone from error
            await asyncio.sleep(0)  # a handler which never waits does not stop what else this process does

        writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
        try:
            async with contextlib.aclosing(self._checked_events(request, context)) as events:
                async for event in events:
                    _write_event(writer, event)
                    await drain()
        except _WorkerGone:
            raise
        except ValueError as error:
            _log.warning("the handler refused request %s", context.id(), exc_info=True)
            _write_event(writer, {"error": {"message": str(error), "code": 400}})
        except (UnavailableError, GeneratorExit) as error:
            _write_event(writer, {"error": {"message": str(error) or "the handler gave the request up", "code": 503}})
        except Exception as error:
            _log.exception("the handler failed on request %s", context.id())
            _write_event(writer, {"error": {"message": type(error).__name__, "code": 500}})
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await drain()

    async def _checked_events(
        self, request: dict[str, Any], context: Context
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the handler's events, and an end where it says none."""
        limit, count = request["stop_conditions"]["max_tokens"], 0
        events = self._handler(request, context)
        try:
            async for event in events:
                count += len(event["token_ids"])
                yield event
                if event.get("finish_reason") is not None:
                    return
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()
        yield {"token_ids": [], "finish_reason": "length" if count >= limit else "stop"}


def _head(status: int, kind: str, length: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{length}\r\n\r\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _write_event(writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
    data = json.dumps(event, separators=(",", ":"), default=_as_number)
    writer.write(_chunk(b"data: " + data.encode() + b"\n\n"))


def _as_number(value: Any) -> Any:
    """Return the number or the list of an array or a scalar of NumPy."""
    return value.tolist()
