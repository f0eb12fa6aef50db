"""What the synchronous and the asynchronous client share: all but sending and waiting."""

from __future__ import annotations

import dataclasses
import itertools
import math
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from . import _direct, _fleet, _inputs, _wire, errors, model
from ._query import Known
from .answer import Answer, decode

Inputs = Mapping[str, object]
Metadata = list[tuple[str, str]]

_SERVICE = "/inference.GRPCInferenceService/"
_DESCRIBE = "/muster.control.v1.Control/Describe"
# Connections for queries to one server; queries beyond them share one connection of gRPC. As the Go
# SDK has it.
_MOST_CONNECTIONS = 8
_DIAL_TIMEOUT = 3.0
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),  # servers say what is too large
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


@dataclasses.dataclass(frozen=True)
class TLS:
    """Which servers a client trusts, and how it proves who it is. Files are PEM.

    Attributes:
        ca: the certificates of the servers' authority, such as certs/ca.crt of `muster certs init`;
            None: the system's.
        cert, key: the client's certificate and private key, both or neither.
        server_name: the name that the server's certificate must have; "": the name or address that
            was dialled. Certificates of `muster certs issue agent` also have "agent.muster".
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS: a certificate without its key, or a key without its certificate")

    def credentials(self) -> grpc.ChannelCredentials:
        ca, key, cert = (p and Path(p).read_bytes() for p in (self.ca, self.key, self.cert))
        return grpc.ssl_channel_credentials(ca or None, key or None, cert or None)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        if self.cert and self.key:
            context.load_cert_chain(str(self.cert), str(self.key))
        context.set_alpn_protocols([_direct.PROTOCOL])
        return context


class Endpoint(_fleet.Endpoint):
    """A server, and the connections to it."""

    def __init__(self, of: _fleet.Endpoint) -> None:
        super().__init__(of.host, of.port, of.server_name)
        self.direct = False  # connections for queries may be opened
        self.probed = False
        self.opened = 0  # connections for queries
        self.dial_again = 0.0
        self.free: list[Any] = []


class Base:
    """The settings of a client, and the models that it knows."""

    def __init__(
        self,
        addresses: str | Sequence[str] = "localhost:8001",
        *,
        deadline: float | None = None,
        tls: TLS | bool | None = None,
        api_key: str | Callable[[], str] | None = None,
        metadata: Mapping[str, str] | None = None,
        insecure: bool = False,
        direct: bool = True,
    ) -> None:
        """Makes a client; it connects when it is first used.

        Args:
            addresses: "host:port" of an agent's gRPC, or several. A name of several addresses stands
                for a server at each. The port is 8001 if it is left out.
            deadline: seconds that a query may take if it says nothing else; None: the model's.
            tls: how to encrypt; True trusts the system's authorities; None: not at all.
            api_key: a key or token, sent as "authorization: Bearer ..."; or a function that returns
                the one to use, called for each query.
            metadata: gRPC metadata that goes with every query.
            insecure: whether a key may go to another machine unencrypted.
            direct: whether to use connections for queries where agents offer them; they halve the
                time of small queries. Without, all goes by gRPC.
        """
        listed = [addresses] if isinstance(addresses, str) else list(addresses)
        if not listed:
            raise ValueError("no address: expected one such as localhost:8001, or several")
        self._addresses = listed
        self._deadline = _check_deadline(deadline)
        self._tls = (TLS() if tls is True else tls) or None
        self._api_key = api_key
        self._extra: Metadata = [(k.lower(), v) for k, v in (metadata or {}).items()]
        self._use_direct = direct
        self._context = self._tls.context() if self._tls and direct else None
        endpoints = [self._make_endpoint(e) for e in _fleet.resolve(listed)]
        if api_key is not None and self._tls is None and not insecure:
            for e in endpoints:
                if e.host != "localhost" and not e.host.startswith("127.") and e.host != "::1":
                    raise ValueError(
                        f"the API key would go to {e.address} unencrypted: set tls, or insecure=True"
                    )
        self._fleet = _fleet.Fleet(list(endpoints))
        self._known: dict[tuple[str, str], Known] = {}
        self._prefix = secrets.token_hex(4)
        self._counter = itertools.count(1)
        self._closed = False

    def _make_endpoint(self, of: _fleet.Endpoint) -> Endpoint:
        raise NotImplementedError

    # Queries.

    def _id(self, given: str) -> str:
        return given or f"{self._prefix}-{next(self._counter)}"

    def _begin(self, known: Known, id: str, deadline: float | None) -> _fleet.Attempts:
        if self._closed:
            raise errors.ClosedError("the client is closed", code="CANCELLED", request_id=id)
        return _fleet.Attempts(self._fleet, id, deadline, known.model.deadline)

    def _encode(
        self,
        known: Known,
        inputs: object,
        named: Inputs,
        outputs: Sequence[str],
        id: str,
        parameters: Mapping[str, _wire.Parameter] | None,
    ) -> tuple[list[Any], int]:
        try:
            tensors = _inputs.tensors_of(known.model, inputs, named)
            if isinstance(outputs, str):
                outputs = (outputs,)
            parts, size = known.encode(tensors, outputs, id, parameters)
        except errors.Error as e:
            e.request_id = id
            raise
        return parts, size

    def _metadata(self, traceparent: str | None) -> Metadata:
        out = list(self._extra) if self._extra else []
        if self._api_key is not None:
            key = self._api_key() if callable(self._api_key) else self._api_key
            out.append(("authorization", f"Bearer {key}"))
        if traceparent is not None:
            out.append(("traceparent", traceparent))
        elif (tracing := _inputs.installed("opentelemetry.propagate")) is not None:
            carrier: dict[str, str] = {}
            tracing.inject(carrier)
            out += carrier.items()
        return out

    def _forget(self, known: Known, error: errors.Error) -> None:
        """Has the model described anew for the next query, for it may have changed."""
        if isinstance(error, (errors.InvalidError, errors.NotFoundError)):
            self._known.pop((known.model.name, known.version), None)

    # Connections.

    def _options(self, endpoint: _fleet.Endpoint) -> list[tuple[str, Any]]:
        name = (self._tls.server_name if self._tls else "") or endpoint.server_name
        if self._tls and name:
            return [*_OPTIONS, ("grpc.ssl_target_name_override", name)]
        return _OPTIONS

    def _server_name(self, endpoint: _fleet.Endpoint) -> str:
        return (self._tls.server_name if self._tls else "") or endpoint.server_name


def _check_deadline(deadline: float | None) -> float | None:
    if deadline is not None and not (deadline > 0 and math.isfinite(deadline)):
        raise errors.InvalidError(
            f"a deadline of {deadline!r}, expected seconds above 0",
            code="INVALID_ARGUMENT",
            reason="invalid",
        )
    return deadline


def parameters_of(
    min_accuracy: float | None,
    priority: int | None,
    more: Mapping[str, _wire.Parameter] | None,
) -> dict[str, _wire.Parameter] | None:
    """A query's parameters; None if it has none."""
    if min_accuracy is None and priority is None and not more:
        return None
    out = dict(more or {})
    if min_accuracy is not None:
        out["min_accuracy"] = float(min_accuracy)
    if priority is not None:
        out["priority"] = int(priority)
    return out


def member_address(described: bytes) -> str:
    """The address in a Member of package muster.control.v1."""
    for key, value in _wire.fields(described):
        if key == 2:
            return _wire.as_text(value)
    return ""


def known_of(data: bytes, name: str, version: str) -> Known:
    """The model in a ModelMetadataResponse, by the name by which it was asked for."""
    described = model.parse(data)
    if described.name != name:
        described = dataclasses.replace(described, name=name)
    return Known(described, version)


def not_ready(name: str, timeout: float, addresses: Sequence[str]) -> errors.DeadlineError:
    return errors.DeadlineError(
        f"{name or 'the server'} is not ready after {timeout:g} s",
        code="DEADLINE_EXCEEDED",
        reason="deadline",
        address=", ".join(addresses),
    )


def decode_streamed(data: bytes, known: Known) -> Answer | errors.Error:
    """The answer in a ModelStreamInferResponse, or the error in its place."""
    message, answer = "", memoryview(b"")
    for key, value in _wire.fields(data):
        if key == 1:
            message = _wire.as_text(value)
        elif key == 2:
            answer = _wire.as_message(value)
    if not message:
        return decode(answer, known.model)
    id = ""
    for key, value in _wire.fields(answer):
        if key == 3:
            id = _wire.as_text(value)
    return errors.Error(message, code="UNKNOWN", request_id=id)
