"""Connections for queries: one query at a time on each, without HTTP/2.

The form is described in docs/internals/wire.md. Agents of Muster accept them on the port of gRPC; a
query and its answer are those of a ModelInfer call, and cost half the time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from typing import Any

from . import _wire

PROTOCOL = "muster-query/1"
PREFACE = b"MUSTER-Q"
# A query of fewer bytes is copied into one buffer, for one write.
_SMALL = 32 << 10
_BUFFER = 64 << 10
_MOST_BUFFERS = 512  # of one write; systems allow 1,024
_LENGTH = struct.Struct(">I")


class Broken(Exception):
    """The connection ended, before its answer: the query may be sent in another way."""


class Reply:
    """What came for a query: an answer, or a google.rpc.Status."""

    __slots__ = ("answer", "load", "status")

    def __init__(self) -> None:
        self.answer: memoryview | None = None
        self.status: memoryview | None = None
        self.load: memoryview | None = None

    def take_head(self, head: memoryview) -> None:
        for key, value in _wire.fields(head):
            if key == 2:
                self.status = _wire.as_message(value)
            elif key == 41:
                self.load = _wire.as_message(value)


def frame(
    timeout: float | None, metadata: list[tuple[str, str]], parts: list[Any], size: int
) -> list[Any]:
    """The buffers to send for a query whose message has these parts and bytes."""
    head = b"" if timeout is None else _wire.number(3, max(1, int(timeout * 1e9)))
    for name, value in metadata:
        head += _wire.field(4, name.encode()) + _wire.field(4, value.encode())
    return [_LENGTH.pack(len(head)) + head + _LENGTH.pack(size) + parts[0], *parts[1:]]


class Connection:
    """A connection that one thread uses at a time."""

    __slots__ = ("buffer", "secure", "sock", "view")

    def __init__(
        self, host: str, port: int, server_name: str, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        self.sock = socket.create_connection((host, port), timeout)
        self.secure = tls is not None
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None:
                self.sock.sendall(PREFACE)
            else:
                secure = tls.wrap_socket(self.sock, server_hostname=server_name or host)
                self.sock = secure
                if secure.selected_alpn_protocol() != PROTOCOL:
                    raise OSError("the server takes no connections for queries")
        except BaseException:
            self.sock.close()
            raise
        self.buffer = bytearray(_BUFFER)
        self.view = memoryview(self.buffer)

    def close(self) -> None:
        self.sock.close()

    def ask(self, buffers: list[Any], size: int, timeout: float | None) -> Reply:
        """Sends a query and waits for what comes, which is valid until the next one. It raises
        TimeoutError or Broken, and then the caller closes the connection."""
        end = None if timeout is None else time.monotonic() + timeout
        sock = self.sock
        sock.settimeout(timeout)
        try:
            if size < _SMALL or self.secure:
                sock.sendall(b"".join(buffers))
            else:
                self._send(buffers)
            return self._receive(end)
        except TimeoutError:
            raise
        except OSError as e:
            raise Broken(str(e)) from e

    def _send(self, buffers: list[Any]) -> None:
        views = [memoryview(b).cast("B") for b in buffers if memoryview(b).nbytes]
        while views:
            sent = self.sock.sendmsg(views[:_MOST_BUFFERS])
            done = 0
            while done < len(views) and sent >= views[done].nbytes:
                sent -= views[done].nbytes
                done += 1
            views = views[done:]
            if sent:
                views[0] = views[0][sent:]

    def _receive(self, end: float | None) -> Reply:
        view = self.view
        have = self._read(view, 0, 4, end)
        size = 4 + int.from_bytes(view[:4], "big")
        if size > _BUFFER:
            raise Broken(f"the head of an answer has {size} bytes")
        have = self._read(view, have, size, end)
        reply = Reply()
        if size > 4:
            reply.take_head(view[4:size])
        if reply.status is not None:
            return reply
        have = self._read(view, have, size + 4, end)
        start = size + 4
        length = int.from_bytes(view[size:start], "big")
        if start + length <= _BUFFER:
            self._read(view, have, start + length, end)
            reply.answer = view[start : start + length]
            return reply
        if reply.load is not None:
            reply.load = memoryview(bytes(reply.load))
        large = memoryview(bytearray(length))
        large[: have - start] = view[start:have]
        self._read(large, have - start, length, end)
        reply.answer = large
        return reply

    def _read(self, view: memoryview, have: int, want: int, end: float | None) -> int:
        """Reads until there are as many bytes as wanted, and maybe more."""
        while have < want:
            n = self.sock.recv_into(view[have:])
            if n == 0:
                raise Broken("the server has closed the connection")
            have += n
            if have < want and end is not None:
                self.sock.settimeout(max(1e-6, end - time.monotonic()))
        return have


class AsyncConnection(asyncio.Protocol):
    """A connection that one task uses at a time."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.waiting: asyncio.Future[Reply] | None = None
        self.transport: asyncio.Transport | None = None
        self.closed = False

    @classmethod
    async def open(
        cls, host: str, port: int, server_name: str, tls: ssl.SSLContext | None
    ) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        name = (server_name or host) if tls else None
        transport, self = await loop.create_connection(
            cls, host, port, ssl=tls, server_hostname=name
        )
        self.transport = transport
        if tls is None:
            transport.write(PREFACE)
        else:
            secure = transport.get_extra_info("ssl_object")
            if secure.selected_alpn_protocol() != PROTOCOL:
                self.close()
                raise OSError("the server takes no connections for queries")
        return self

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.waiting is None or self.waiting.done():
            self.close()
            return
        try:
            reply = self._parse()
        except ValueError as e:
            self.waiting.set_exception(Broken(str(e)))
            self.close()
            return
        if reply is not None:
            self.waiting.set_result(reply)

    def _parse(self) -> Reply | None:
        got = self.received
        if len(got) < 4:
            return None
        size = 4 + int.from_bytes(got[:4], "big")
        if len(got) < size:
            return None
        if size > _BUFFER:
            raise ValueError(f"the head of an answer has {size} bytes")
        reply = Reply()
        reply.take_head(memoryview(bytes(got[4:size])))
        if reply.status is None:
            if len(got) < size + 4:
                return None
            end = size + 4 + int.from_bytes(got[size : size + 4], "big")
            if len(got) < end:
                return None
            reply.answer = memoryview(got)[size + 4 : end]
        self.received = bytearray()
        return reply

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(Broken(str(error or "the server has closed the connection")))

    def close(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, buffers: list[Any], size: int, timeout: float | None) -> Reply:
        """As Connection.ask."""
        if self.closed or self.transport is None:
            raise Broken("the connection is closed")
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.waiting = waiting
        if size < _SMALL:
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(
                [memoryview(b).cast("B") for b in buffers if memoryview(b).nbytes]
            )
        try:
            if timeout is None:
                return await waiting
            async with asyncio.timeout(timeout):
                return await waiting
        finally:
            self.waiting = None
