"""The errors of the client. A value which is wrong before it is sent is a ValueError."""

from __future__ import annotations


class PenstockError(Exception):
    """Any failure of a call."""


class UnreachableError(PenstockError, ConnectionError):
    """The server did not answer, as often as it was asked."""


class RefusedError(PenstockError):
    """The server refused the call. ``status`` and ``code`` are those of docs/http.md."""

    def __init__(
        self, message: str, status: int, code: str = "", retryable: bool = False, retry_after: float = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable  # the server says that another attempt may succeed
        self.retry_after = retry_after  # in how many seconds, if it says so


class UnavailableError(RefusedError):
    """The fleet is busy, or has no worker for the request now (503)."""


class UnknownNameError(PenstockError, LookupError):
    """The fleet has no such namespace, component or endpoint. The message has the names which it has."""


class ConfigError(PenstockError, ValueError):
    """The fleet's settings are others than the caller says."""


class StreamBrokenError(PenstockError):
    """An answer ended before its last token. ``tokens`` of it had arrived."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens
