"""What can become of a query, other than an answer.

Every error says what was found, which query it was and what to do. `muster.Error` is the base class
of all; several are also the built-in error of their kind (`DeadlineError` is a `TimeoutError`).
"""

from __future__ import annotations

from . import _wire

_CODES = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]


class Error(Exception):
    """A query or call that failed.

    Attributes:
        cause: what was found, in the server's words.
        code: gRPC's name of the kind, such as "NOT_FOUND".
        reason: Muster's name of the kind, such as "overloaded"; "" if the server gave none.
        request_id: the id of the query, which its server had, too; "" if none was sent.
        address: the server that was asked last; "" if none was.
        retry_after: seconds after which the server expects to have room; None if it did not say.
        attempts: how many times the query was sent.
        what_to_do: advice, in words.
    """

    what_to_do = "This is a fault of the server or of the model: its log says more."

    def __init__(
        self,
        cause: str,
        *,
        code: str = "UNKNOWN",
        reason: str = "",
        request_id: str = "",
        address: str = "",
        retry_after: float | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.code = code
        self.reason = reason
        self.request_id = request_id
        self.address = address
        self.retry_after = retry_after
        self.attempts = attempts

    def __str__(self) -> str:
        where = [f"request {self.request_id}"] if self.request_id else []
        where += [f"server {self.address}"] if self.address else []
        where += [f"{self.attempts} attempts"] if self.attempts > 1 else []
        place = f" ({', '.join(where)})" if where else ""
        return f"{self.reason or self.code}: {self.cause}{place}. {self.what_to_do}"


class InvalidError(Error, ValueError):
    """The query does not fit the protocol or the model. It fails again if it is sent again."""

    what_to_do = "Compare the inputs with client.model(name).inputs."


class TooLargeError(InvalidError):
    """The query has more rows or bytes than the model or the server takes."""

    what_to_do = "Send it in parts; client.model(name).largest_batch_size is the limit of rows."


class NotFoundError(Error, LookupError):
    """There is no such model or version, or no variant is as accurate as was asked for."""

    what_to_do = "`muster models list` names the models that are served, and why others are not."


class OverloadedError(Error):
    """The query could not be served in time: too much waits. `retry_after` says when to ask again."""

    what_to_do = (
        "Send it later, with a longer deadline, or add machines: `muster why` says what is short."
    )


class LimitError(OverloadedError):
    """The client is beyond the limits that the access file gives it."""

    what_to_do = "Send fewer queries, or have the client's limits raised in the access file."


class DeadlineError(Error, TimeoutError):
    """The answer did not come before the deadline."""

    what_to_do = "Allow more time, or ask `muster why` where it went."


class UnavailableError(Error, ConnectionError):
    """No server could be reached, or none could run the query."""

    what_to_do = "Check that an agent runs at the address (`muster status --server ADDRESS`), then send it again."


class DeniedError(Error, PermissionError):
    """The server does not know the client, or does not allow it this model."""

    what_to_do = (
        "Give the client an api_key or certificate whose name has the model in the access file."
    )


class ClosedError(Error):
    """The client is closed."""

    what_to_do = "Make a new client, or close this one later."


_BY_REASON: dict[str, type[Error]] = {
    "too_large": TooLargeError,
    "limit": LimitError,
}
_BY_CODE: dict[str, type[Error]] = {
    "INVALID_ARGUMENT": InvalidError,
    "OUT_OF_RANGE": InvalidError,
    "NOT_FOUND": NotFoundError,
    "FAILED_PRECONDITION": NotFoundError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "UNAVAILABLE": UnavailableError,
    "PERMISSION_DENIED": DeniedError,
    "UNAUTHENTICATED": DeniedError,
}


def from_status(
    code: int | str, message: str, details: _wire.Bytes = b"", **more: str | int
) -> Error:
    """The error of a gRPC status. details is a google.rpc.Status, which may be empty."""
    if isinstance(code, int):
        code = _CODES[code] if 0 <= code < len(_CODES) else "UNKNOWN"
    reason, retry_after = _explain(details)
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, Error)
    return kind(message, code=code, reason=reason, retry_after=retry_after, **more)  # type: ignore[arg-type]


def read_status(data: _wire.Bytes) -> tuple[int, str]:
    """The code and message of a google.rpc.Status."""
    code, message = 2, ""
    for key, value in _wire.fields(data):
        if key == 1:
            code = _wire.as_int(value)
        elif key == 2:
            message = _wire.as_text(value)
    return code, message


def _explain(details: _wire.Bytes) -> tuple[str, float | None]:
    """The reason of ErrorInfo, and the delay of RetryInfo in seconds."""
    reason, delay = "", None
    for key, value in _wire.fields(details):
        if key != 3:
            continue
        url, body = "", memoryview(b"")
        for part, x in _wire.fields(_wire.as_message(value)):
            if part == 1:
                url = _wire.as_text(x)
            elif part == 2:
                body = _wire.as_message(x)
        if url.endswith("/google.rpc.ErrorInfo"):
            info = dict(_wire.fields(body))
            if 1 in info and _wire.as_text(info.get(2, memoryview(b""))) == "muster":
                reason = _wire.as_text(info[1])
        elif url.endswith("/google.rpc.RetryInfo"):
            for part, x in _wire.fields(body):
                if part == 1:
                    span = dict(_wire.fields(_wire.as_message(x)))
                    delay = _wire.as_int(span.get(1, 0)) + _wire.as_int(span.get(2, 0)) / 1e9
    return reason, delay
