"""The asynchronous client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from . import _base, _client, _direct, _fleet, _wire, errors, model
from ._base import Endpoint, Metadata
from ._query import Known
from .answer import Answer, decode
from .model import Model


class _AsyncEndpoint(Endpoint):
    """A server, and the connections to it, of one event loop."""

    def __init__(self, of: _fleet.Endpoint, client: AsyncClient) -> None:
        super().__init__(of)
        self.client = client
        self.channel: Any = None
        self.infer: Any = None
        self.prober: asyncio.Task[None] | None = None

    def connect(self) -> Any:
        if self.channel is None:
            options = self.client._options(self)
            if self.client._tls is None:
                self.channel = grpc.aio.insecure_channel(self.address, options)
            else:
                self.channel = grpc.aio.secure_channel(
                    self.address, self.client._tls.credentials(), options
                )
            self.infer = self.channel.unary_unary(_base._SERVICE + "ModelInfer")
        return self.channel

    async def call(
        self, path: str, request: bytes, timeout: float | None, metadata: Metadata
    ) -> bytes:
        """A unary call other than a query."""
        method = self.connect().unary_unary(path)
        response: bytes = await method(request, timeout=timeout, metadata=metadata or None)
        return response

    async def take(self, timeout: float | None) -> _direct.AsyncConnection | None:
        """A connection for a query, opened in at most so many seconds; None: it must go by gRPC."""
        while self.free:
            connection: _direct.AsyncConnection = self.free.pop()
            if not connection.closed:
                return connection
            self.opened -= 1
        if (
            not self.direct
            or self.opened >= _base._MOST_CONNECTIONS
            or time.monotonic() < self.dial_again
        ):
            return None
        self.opened += 1
        try:
            async with asyncio.timeout(min(_base._DIAL_TIMEOUT, timeout or _base._DIAL_TIMEOUT)):
                return await _direct.AsyncConnection.open(
                    self.host, self.port, self.client._server_name(self), self.client._context
                )
        except OSError:  # TimeoutError is one
            self.opened -= 1
            self.dial_again = time.monotonic() + 1
            return None
        except BaseException:
            self.opened -= 1
            raise

    def drop(self, connection: _direct.AsyncConnection) -> None:
        connection.close()
        self.opened -= 1

    def probe(self) -> None:
        """Finds out whether the server takes connections for queries at this address."""
        if not self.probed and self.client._use_direct:
            self.probed = True
            self.prober = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        try:
            if self.client._tls is None:
                described = await self.call(
                    _base._DESCRIBE, b"", _base._DIAL_TIMEOUT, self.client._metadata(None)
                )
                own = _fleet.split_address(_base.member_address(described))
                if not await asyncio.to_thread(_client._same, own, (self.host, self.port)):
                    return
            self.direct = True
            connection = await self.take(None)
            if connection is None:
                self.direct = False
            else:
                self.free.append(connection)
        except (grpc.RpcError, ValueError, OSError):
            pass  # another server, or one behind a balancer: gRPC it is

    async def close(self) -> None:
        if self.prober is not None:
            self.prober.cancel()
        while self.free:
            self.free.pop().close()
        if self.channel is not None:
            await self.channel.close()


class AsyncClient(_base.Base):
    """Client for asyncio: the same settings, methods and errors. It belongs to one event loop.

    Example:
        async with muster.AsyncClient("localhost:8001") as c:
            scores = (await c.predict("ncf", ids=x, deadline=.05))["scores"]
    """

    def _make_endpoint(self, of: _fleet.Endpoint) -> Endpoint:
        return _AsyncEndpoint(of, self)

    async def predict(
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
        """As Client.predict. A query that is cancelled is cancelled at the server, too."""
        if deadline is None:
            deadline = self._deadline
        else:
            _base._check_deadline(deadline)
        known = self._known.get((model, version := str(version)))
        if known is None:
            began = time.monotonic()
            known = await self._describe(model, version, deadline, id)
            if deadline is not None:
                deadline = max(1e-6, deadline - (time.monotonic() - began))
        id = self._id(id)
        given = _base.parameters_of(min_accuracy, priority, parameters)
        parts, size = self._encode(known, inputs, named, outputs, id, given)
        attempts = self._begin(known, id, deadline)
        metadata = self._metadata(traceparent)
        try:
            return await self._ask(known, attempts, parts, size, metadata)
        except errors.Error as e:
            self._forget(known, e)
            raise

    async def _ask(
        self,
        known: Known,
        attempts: _fleet.Attempts,
        parts: list[Any],
        size: int,
        metadata: Metadata,
    ) -> Answer:
        while True:
            endpoint = attempts.next()
            assert isinstance(endpoint, _AsyncEndpoint)
            endpoint.under_way += 1
            try:
                return await self._attempt(known, attempts, endpoint, parts, size, metadata)
            except grpc.aio.AioRpcError as e:
                wait = attempts.after(endpoint, *_client._status_of(e))
            except _client._Refused as e:
                wait = attempts.after(endpoint, *e.status)
            finally:
                endpoint.under_way -= 1
            if wait > 0:
                await asyncio.sleep(wait)

    async def _attempt(
        self,
        known: Known,
        attempts: _fleet.Attempts,
        endpoint: _AsyncEndpoint,
        parts: list[Any],
        size: int,
        metadata: Metadata,
    ) -> Answer:
        connection = await endpoint.take(attempts.remaining())
        left = attempts.remaining()
        if connection is not None:
            try:
                reply = await connection.ask(_direct.frame(left, metadata, parts, size), size, left)
            except TimeoutError:
                endpoint.drop(connection)
                raise attempts.late(endpoint.address) from None
            except _direct.Broken:
                endpoint.drop(connection)
                left = attempts.remaining()
            except BaseException:
                endpoint.drop(connection)
                raise
            else:
                endpoint.free.append(connection)
                if reply.load is not None:
                    endpoint.report(reply.load)
                if reply.status is not None:
                    code, message = errors.read_status(reply.status)
                    raise _client._Refused(code, message, bytes(reply.status))
                assert reply.answer is not None
                return decode(reply.answer, known.model)
        endpoint.connect()
        response = await endpoint.infer(b"".join(parts), timeout=left, metadata=metadata or None)
        endpoint.probe()
        return decode(memoryview(response), known.model)

    async def _describe(
        self, name: str, version: str, deadline: float | None, id: str = ""
    ) -> Known:
        attempts = _fleet.Attempts(self._fleet, id, deadline, None)
        request = model.request(name, version)
        data = await self._control(_base._SERVICE + "ModelMetadata", request, attempts)
        known = _base.known_of(data, name, version)
        self._known[name, version] = known
        return known

    async def _control(self, path: str, request: bytes, attempts: _fleet.Attempts) -> bytes:
        """A call other than a query, of any server that answers."""
        if self._closed:
            raise errors.ClosedError("the client is closed", code="CANCELLED")
        while True:
            endpoint = attempts.next()
            assert isinstance(endpoint, _AsyncEndpoint)
            try:
                left = attempts.remaining()
                return await endpoint.call(path, request, left, self._metadata(None))
            except grpc.aio.AioRpcError as e:
                await asyncio.sleep(attempts.after(endpoint, *_client._status_of(e)))

    async def stream(
        self,
        model: str,
        queries: Iterable[object] | AsyncIterable[object],
        /,
        *,
        deadline: float | None = None,
        version: str | int = "",
        outputs: Sequence[str] = (),
        min_accuracy: float | None = None,
        priority: int | None = None,
    ) -> AsyncIterator[Answer | errors.Error]:
        """As Client.stream; queries may be an asynchronous iterable."""
        version = str(version)
        limit = deadline if deadline is not None else self._deadline
        known = self._known.get((model, version)) or await self._describe(model, version, limit)
        given = _base.parameters_of(min_accuracy, priority, None) or {}
        if limit is not None:
            given["timeout"] = max(1, int(limit * 1e6))
        endpoint = self._begin(known, "", None).next()
        assert isinstance(endpoint, _AsyncEndpoint)
        unsent: list[BaseException] = []

        async def requests() -> AsyncIterator[bytes]:
            try:
                async for inputs in _each(queries):
                    parts, _ = self._encode(known, inputs, {}, outputs, self._id(""), given)
                    yield b"".join(parts)
            except Exception as e:
                unsent.append(e)
                raise

        method = endpoint.connect().stream_stream(_base._SERVICE + "ModelStreamInfer")
        call = method(requests(), metadata=self._metadata(None) or None)
        try:
            async for data in call:
                yield _base.decode_streamed(data, known)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as e:
            if unsent:
                raise unsent[0] from None
            if isinstance(e, asyncio.CancelledError):
                raise
            code, message, details = _client._status_of(e)
            raise errors.from_status(code, message, details, address=endpoint.address) from None
        finally:
            call.cancel()

    async def model(self, name: str, version: str | int = "", *, timeout: float = 5.0) -> Model:
        """As Client.model."""
        return (await self._describe(name, str(version), timeout)).model

    async def is_ready(
        self, name: str = "", version: str | int = "", *, timeout: float = 5.0
    ) -> bool:
        """As Client.is_ready."""
        path = _base._SERVICE + ("ModelReady" if name else "ServerReady")
        request = model.request(name, str(version)) if name else b""
        try:
            data = await self._control(
                path, request, _fleet.Attempts(self._fleet, "", timeout, None)
            )
        except (errors.UnavailableError, errors.NotFoundError, errors.DeadlineError):
            return False
        return any(key == 1 and bool(value) for key, value in _wire.fields(data))

    async def wait_ready(self, name: str = "", *, timeout: float = 30.0) -> None:
        """As Client.wait_ready."""
        end = time.monotonic() + timeout
        while not await self.is_ready(name, timeout=max(0.001, end - time.monotonic())):
            if time.monotonic() > end:
                raise _base.not_ready(name, timeout, self._addresses)
            await asyncio.sleep(0.05)
        if name:
            await self._describe(name, "", max(0.001, end - time.monotonic()))
        for endpoint in self._fleet.endpoints:
            assert isinstance(endpoint, _AsyncEndpoint)
            endpoint.probe()
            if endpoint.prober is not None:
                await asyncio.wait([endpoint.prober], timeout=max(0.0, end - time.monotonic()))

    async def close(self) -> None:
        """Closes all connections. Queries that are under way end with an error."""
        self._closed = True
        for endpoint in self._fleet.endpoints:
            assert isinstance(endpoint, _AsyncEndpoint)
            await endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _each(queries: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    if isinstance(queries, AsyncIterable):
        async for query in queries:
            yield query
    else:
        for query in queries:
            yield query
