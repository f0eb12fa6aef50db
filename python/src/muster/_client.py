"""The synchronous client."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from . import _base, _direct, _fleet, _wire, errors, model
from ._base import Endpoint, Metadata
from ._query import Known
from .answer import Answer, decode
from .model import Model

_Call = Callable[..., Any]


class _SyncEndpoint(Endpoint):
    """A server, and the connections to it, which are opened when they are needed."""

    def __init__(self, of: _fleet.Endpoint, client: Client) -> None:
        super().__init__(of)
        self.client = client
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forgets all connections, in a process that was forked."""
        self.channel: grpc.Channel | None = None
        self.infer: Any = None
        self.free = []
        self.opened = 0
        self.probed = False
        self.direct = False
        self.prober: threading.Thread | None = None

    def connect(self) -> grpc.Channel:
        with self.lock:
            if self.channel is None:
                options = self.client._options(self)
                if self.client._tls is None:
                    self.channel = grpc.insecure_channel(self.address, options)
                else:
                    self.channel = grpc.secure_channel(
                        self.address, self.client._tls.credentials(), options
                    )
                self.infer = self.channel.unary_unary(_base._SERVICE + "ModelInfer")
            return self.channel

    def call(self, path: str, request: bytes, timeout: float | None, metadata: Metadata) -> bytes:
        """A unary call other than a query."""
        method: Any = self.connect().unary_unary(path)
        response: bytes = method(request, timeout=timeout, metadata=metadata or None)
        return response

    def take(self, timeout: float | None) -> _direct.Connection | None:
        """A connection for a query, opened in at most so many seconds; None: it must go by gRPC."""
        if (connection := self.take_free()) is not None:
            return connection
        if not self.direct or self.opened >= _base._MOST_CONNECTIONS:
            return None
        with self.lock:
            if self.opened >= _base._MOST_CONNECTIONS or time.monotonic() < self.dial_again:
                return None
            self.opened += 1
        try:
            return _direct.Connection(
                self.host,
                self.port,
                self.client._server_name(self),
                self.client._context,
                min(_base._DIAL_TIMEOUT, timeout or _base._DIAL_TIMEOUT),
            )
        except OSError:  # the query goes by gRPC, which says why, if it is more than that
            with self.lock:
                self.opened -= 1
                self.dial_again = time.monotonic() + 1
            return None

    def take_free(self) -> _direct.Connection | None:
        """A connection that is open and free."""
        try:
            connection: _direct.Connection = self.free.pop()
        except IndexError:
            return None
        return connection

    def drop(self, connection: _direct.Connection) -> None:
        connection.close()
        with self.lock:
            self.opened -= 1

    def probe(self) -> None:
        """Finds out whether the server takes connections for queries at this address."""
        if self.probed or not self.client._use_direct:
            return
        self.probed = True
        self.prober = threading.Thread(target=self._probe, daemon=True, name="muster-probe")
        self.prober.start()

    def _probe(self) -> None:
        if self.client._tls is not None:  # the handshake tells
            self._try_direct()
            return
        try:
            described = self.call(
                _base._DESCRIBE, b"", _base._DIAL_TIMEOUT, self.client._metadata(None)
            )
            own = _fleet.split_address(_base.member_address(described))
            if _same(own, (self.host, self.port)):
                self._try_direct()
        except (grpc.RpcError, ValueError, OSError):
            pass  # another server, or one behind a balancer: gRPC it is

    def _try_direct(self) -> None:
        self.direct = True
        connection = self.take(None)
        if connection is None:
            self.direct = False
        else:
            self.free.append(connection)

    def close(self) -> None:
        while self.free:
            self.free.pop().close()
        if self.channel is not None:
            self.channel.close()


def _same(a: tuple[str, int], b: tuple[str, int]) -> bool:
    """Whether two addresses are one, or names of one."""
    if a[1] != b[1]:
        return False
    found = [{f[4][0] for f in socket.getaddrinfo(host, port)} for host, port in (a, b)]
    return bool(found[0] & found[1])


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(_base.Base):
    """Sends queries to agents of Muster, or to another server of the Open Inference Protocol.

    Its methods may be called from several threads. Use it as a context manager, or close it.

    Example:
        with muster.Client("localhost:8001") as c:
            scores = c.predict("ncf", ids=x, deadline=.05)["scores"]
    """

    def _make_endpoint(self, of: _fleet.Endpoint) -> Endpoint:
        _clients.add(self)
        return _SyncEndpoint(of, self)

    def predict(
        self,
        model: str,
        inputs: object = None,
        /,
        *,
        deadline: float | None = None,
        version: str | int = "",
        outputs: Sequence[str] = (),
        id: str = "",
        min_accuracy: float | None = None,
        priority: int | None = None,
        parameters: Mapping[str, _wire.Parameter] | None = None,
        traceparent: str | None = None,
        **named: object,
    ) -> Answer:
        """Sends a query, and waits for its answer.

        Args:
            model: a model or a family of models.
            inputs: a mapping of inputs by name, or a table of pandas, polars or Arrow with a column
                for each. Inputs may also be keyword arguments, unless one has the name of another
                argument. A value is an array, or whatever numpy makes one of; its first dimension
                is the rows. A user's input is given once, a ragged one as a list of lists.
            deadline: seconds until the answer must be here, attempts and waiting included; None:
                the client's, else the model's. A first query also asks what the model takes.
            version: of the model; "": the one that is served.
            outputs: those to answer; (): all.
            id: comes back with the answer, and is in errors; "": one is made.
            min_accuracy: of a family, the least accuracy that will do, in (0, 1].
            priority: passed on to the server.
            parameters: further ones of the protocol, passed on.
            traceparent: the trace that the query belongs to, as W3C writes it; None: the current
                span of OpenTelemetry, if the program uses that.

        Returns:
            The outputs by name, as arrays with a row for each row (or candidate) of the query.

        Raises:
            muster.Error: what became of it. A refusal for overload was retried until the deadline,
                as the server said; a server that cannot be reached was replaced by another.
        """
        if deadline is None:
            deadline = self._deadline
        elif not 0 < deadline < 1e9:
            _base._check_deadline(deadline)
        known = self._known.get((model, version := str(version)))
        if known is None:
            began = time.monotonic()
            known = self._describe(model, version, deadline, id)
            if deadline is not None:
                deadline = max(1e-6, deadline - (time.monotonic() - began))
        id = self._id(id)
        given = _base.parameters_of(min_accuracy, priority, parameters)
        parts, size = self._encode(known, inputs, named, outputs, id, given)
        attempts = self._begin(known, id, deadline)
        metadata = self._metadata(traceparent)
        try:
            return self._ask(known, attempts, parts, size, metadata)
        except errors.Error as e:
            self._forget(known, e)
            raise

    def _ask(
        self,
        known: Known,
        attempts: _fleet.Attempts,
        parts: list[Any],
        size: int,
        metadata: Metadata,
    ) -> Answer:
        several = len(self._fleet.endpoints) > 1
        while True:
            endpoint = attempts.next()
            assert isinstance(endpoint, _SyncEndpoint)
            if several:
                self._fleet.count(endpoint, 1)
            try:
                answer = self._attempt(known, attempts, endpoint, parts, size, metadata)
            except grpc.RpcError as e:
                wait = attempts.after(endpoint, *_status_of(e))
            except _Refused as e:
                wait = attempts.after(endpoint, *e.status)
            else:
                return answer
            finally:
                if several:
                    self._fleet.count(endpoint, -1)
            if wait > 0:
                time.sleep(wait)

    def _attempt(
        self,
        known: Known,
        attempts: _fleet.Attempts,
        endpoint: _SyncEndpoint,
        parts: list[Any],
        size: int,
        metadata: Metadata,
    ) -> Answer:
        connection = endpoint.take(attempts.remaining())
        left = attempts.remaining()
        while connection is not None:
            try:
                buffers = _direct.frame(left, metadata, parts, size)
                reply = connection.ask(buffers, size, left)
                if reply.load is not None:
                    endpoint.report(reply.load)
                if reply.status is not None:
                    code, message = errors.read_status(reply.status)
                    raise _Refused(code, message, bytes(reply.status))
                assert reply.answer is not None
                answer = decode(reply.answer, known.model)
            except _Refused:
                endpoint.free.append(connection)
                raise
            except TimeoutError:
                endpoint.drop(connection)
                raise attempts.late(endpoint.address) from None
            except _direct.Broken:
                endpoint.drop(connection)
                left = attempts.remaining()
                connection = endpoint.take_free()
            except BaseException:
                endpoint.drop(connection)
                raise
            else:
                endpoint.free.append(connection)
                return answer
        if endpoint.infer is None:
            endpoint.connect()
        # grpcio hides the load that the answer carries: such servers are chosen by queries under way.
        response = endpoint.infer(b"".join(parts), timeout=left, metadata=metadata or None)
        if not endpoint.probed:
            endpoint.probe()
        return decode(memoryview(response), known.model)

    def _describe(self, name: str, version: str, deadline: float | None, id: str = "") -> Known:
        attempts = _fleet.Attempts(self._fleet, id, deadline, None)
        data = self._control(
            _base._SERVICE + "ModelMetadata", model.request(name, version), attempts
        )
        known = _base.known_of(data, name, version)
        self._known[name, version] = known
        return known

    def _control(self, path: str, request: bytes, attempts: _fleet.Attempts) -> bytes:
        """A call other than a query, of any server that answers."""
        if self._closed:
            raise errors.ClosedError("the client is closed", code="CANCELLED")
        while True:
            endpoint = attempts.next()
            assert isinstance(endpoint, _SyncEndpoint)
            try:
                return endpoint.call(path, request, attempts.remaining(), self._metadata(None))
            except grpc.RpcError as e:
                time.sleep(attempts.after(endpoint, *_status_of(e)))

    def stream(
        self,
        model: str,
        queries: Iterable[object],
        /,
        *,
        deadline: float | None = None,
        version: str | int = "",
        outputs: Sequence[str] = (),
        min_accuracy: float | None = None,
        priority: int | None = None,
    ) -> Iterator[Answer | errors.Error]:
        """Sends queries on one stream, and yields their answers in the order of the queries.

        A query is a mapping or table of inputs, as in predict. One that fails yields its error in
        place of an answer, and the stream goes on. Several are under way at a time, so queries are
        drawn before earlier ones are answered. deadline is of each query.

        Raises:
            muster.Error: the stream itself failed; what was not answered may be sent again.
        """
        version = str(version)
        limit = deadline if deadline is not None else self._deadline
        known = self._known.get((model, version)) or self._describe(model, version, limit)
        given = _base.parameters_of(min_accuracy, priority, None) or {}
        if limit is not None:
            given["timeout"] = max(1, int(limit * 1e6))
        attempts = self._begin(known, "", None)
        endpoint = attempts.next()
        assert isinstance(endpoint, _SyncEndpoint)
        unsent: list[BaseException] = []

        def requests() -> Iterator[bytes]:
            try:
                for inputs in queries:
                    parts, _ = self._encode(known, inputs, {}, outputs, self._id(""), given)
                    yield b"".join(parts)
            except BaseException as e:
                unsent.append(e)
                raise

        method: Any = endpoint.connect().stream_stream(_base._SERVICE + "ModelStreamInfer")
        call = method(requests(), metadata=self._metadata(None) or None)
        try:
            for data in call:
                yield _base.decode_streamed(data, known)
        except grpc.RpcError as e:
            if unsent:
                raise unsent[0] from None
            code, message, details = _status_of(e)
            raise errors.from_status(code, message, details, address=endpoint.address) from None
        finally:
            call.cancel()

    def model(self, name: str, version: str | int = "", *, timeout: float = 5.0) -> Model:
        """What a model takes and answers, asked anew. timeout is in seconds."""
        return self._describe(name, str(version), timeout).model

    def is_ready(self, name: str = "", version: str | int = "", *, timeout: float = 5.0) -> bool:
        """Whether a model, or without a name a server, takes queries. timeout is in seconds."""
        path = _base._SERVICE + ("ModelReady" if name else "ServerReady")
        request = model.request(name, str(version)) if name else b""
        attempts = _fleet.Attempts(self._fleet, "", timeout, None)
        try:
            data = self._control(path, request, attempts)
        except (errors.UnavailableError, errors.NotFoundError, errors.DeadlineError):
            return False
        return any(key == 1 and bool(value) for key, value in _wire.fields(data))

    def wait_ready(self, name: str = "", *, timeout: float = 30.0) -> None:
        """Waits until a model, or without a name a server, takes queries, and connects.

        Raises:
            muster.DeadlineError: it does not after timeout seconds.
        """
        end = time.monotonic() + timeout
        while not self.is_ready(name, timeout=max(0.001, end - time.monotonic())):
            if time.monotonic() > end:
                raise _base.not_ready(name, timeout, self._addresses)
            time.sleep(0.05)
        if name:
            self._describe(name, "", max(0.001, end - time.monotonic()))
        for endpoint in self._fleet.endpoints:
            assert isinstance(endpoint, _SyncEndpoint)
            endpoint.probe()
            if endpoint.prober is not None:
                endpoint.prober.join(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Closes all connections. Queries that are under way end with an error."""
        self._closed = True
        for endpoint in self._fleet.endpoints:
            assert isinstance(endpoint, _SyncEndpoint)
            endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Refused(Exception):
    """A query that a server has refused on a connection for queries."""

    def __init__(self, *status: Any) -> None:
        self.status = status


def _status_of(error: Any) -> tuple[str, str, bytes]:
    """The code, message and details of a call's error."""
    details = b""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            details = value
    return error.code().name, error.details() or "", details


def _reset_all() -> None:
    for client in _clients:
        for endpoint in client._fleet.endpoints:
            assert isinstance(endpoint, _SyncEndpoint)
            endpoint.lock = threading.Lock()
            endpoint.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
