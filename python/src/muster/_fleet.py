"""Which server gets a query, and what becomes of one that a server refuses. Nothing here sends."""

from __future__ import annotations

import dataclasses
import ipaddress
import random
import socket
import threading
import time
from collections.abc import Sequence

from . import _wire, errors

# A server that failed gets no query for so many seconds while another is left. Chosen: an agent
# starts again within it, and a query that finds out costs one more attempt.
_PENALTY = 1.0
# A report of load counts less as it ages, and nothing after so many seconds: agents average over as
# many.
_REPORT_LIFE = 10.0
# What an idle server's load counts as, so that queries under way there count too.
_IDLE = 0.05
_ATTEMPTS_WITHOUT_DEADLINE = 10


@dataclasses.dataclass(eq=False)
class Endpoint:
    """A server: its address, and what is known of its load."""

    host: str
    port: int
    server_name: str  # that its certificate must have; "": the host
    load: float = 0.0  # application_utilization, see docs/protocol.md
    load_at: float = 0.0
    under_way: int = 0
    avoid_until: float = 0.0

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def cost(self, now: float) -> float:
        """What a further query may expect here, beside other servers."""
        fresh = max(0.0, 1 - (now - self.load_at) / _REPORT_LIFE)
        return (self.under_way + 1) * (_IDLE + self.load * fresh)

    def report(self, orca: _wire.Bytes) -> None:
        """Takes an ORCA load report."""
        try:
            for key, value in _wire.fields(orca):
                if key == 9:
                    self.load, self.load_at = _wire.as_double(value), time.monotonic()
                    return
        except ValueError:
            return
        self.load, self.load_at = 0.0, time.monotonic()  # proto3 leaves zeros out


def split_address(address: str) -> tuple[str, int]:
    """Host and port, which is 8001 if the address has none."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        host, port = address, "8001"
    elif ":" in host and not host.startswith("["):
        host, port = address, "8001"  # IPv6 without a port
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address {address!r}: found the port {port!r}, expected 1 to 65535")
    if not host:
        raise ValueError(f"address {address!r} has no host")
    return host.strip("[]"), int(port)


def resolve(addresses: Sequence[str]) -> list[Endpoint]:
    """The servers behind addresses. A name of several addresses stands for a server at each."""
    out: list[Endpoint] = []
    for address in addresses:
        host, port = split_address(address)
        found = [] if _is_literal(host) else _look_up(host, port)
        if len(found) > 1:
            out += [Endpoint(ip, port, host) for ip in found]
        else:
            out.append(Endpoint(host, port, ""))
    return out


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        return False


def _look_up(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []  # the query that cannot be sent says why
    for family in (socket.AF_INET, socket.AF_INET6):
        ips = sorted({str(f[4][0]) for f in found if f[0] == family})
        if len(ips) > 1:
            return ips
        if ips:
            return []
    return []


class Fleet:
    """The servers of a client. Its methods may be called concurrently."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self._lock = threading.Lock()

    def choose(self, tried: Sequence[Endpoint] = ()) -> Endpoint:
        """The less loaded of two servers drawn at random: the power of two choices."""
        if len(self.endpoints) == 1:
            return self.endpoints[0]
        now = time.monotonic()
        left = [e for e in self.endpoints if e not in tried] or self.endpoints
        left = [e for e in left if e.avoid_until <= now] or left
        if len(left) == 1:
            return left[0]
        a, b = random.sample(left, 2)
        return a if a.cost(now) <= b.cost(now) else b

    def count(self, endpoint: Endpoint, change: int) -> None:
        """Counts queries under way."""
        with self._lock:
            endpoint.under_way += change


class Attempts:
    """The attempts of one query: where the next one goes, and whether there is one."""

    __slots__ = ("deadline_at", "fleet", "given", "id", "number", "patience_at", "tried")

    def __init__(
        self, fleet: Fleet, id: str, deadline: float | None, patience: float | None
    ) -> None:
        """deadline and patience are in seconds from now. patience is how long refusals are retried if
        there is no deadline; None: for some attempts."""
        now = time.monotonic()
        self.fleet = fleet
        self.id = id
        self.given = deadline
        self.deadline_at = None if deadline is None else now + deadline
        self.patience_at = self.deadline_at
        if deadline is None and patience is not None:
            self.patience_at = now + patience
        self.tried: list[Endpoint] = []
        self.number = 0

    def next(self) -> Endpoint:
        """The server of the next attempt."""
        self.number += 1
        return self.fleet.choose(self.tried)

    def remaining(self) -> float | None:
        """Seconds until the deadline; None: there is none. It raises DeadlineError if it has passed."""
        if self.deadline_at is None:
            return None
        left = self.deadline_at - time.monotonic()
        if left <= 0:
            raise self.late("")
        return left

    def late(self, address: str) -> errors.Error:
        """The error of a query whose deadline has passed."""
        return errors.DeadlineError(
            f"no answer within the deadline of {self.given:g} s",
            code="DEADLINE_EXCEEDED",
            reason="deadline",
            request_id=self.id,
            address=address,
            attempts=self.number,
        )

    def after(
        self, endpoint: Endpoint, code: int | str, message: str, details: _wire.Bytes
    ) -> float:
        """Seconds to wait before the next attempt, after one that failed. It raises the query's error
        if there is none."""
        error = errors.from_status(
            code,
            message,
            details,
            request_id=self.id,
            address=endpoint.address,
            attempts=self.number,
        )
        now = time.monotonic()
        wait = error.retry_after
        if isinstance(error, errors.UnavailableError):
            endpoint.avoid_until = now + _PENALTY
            self.tried.append(endpoint)
            if len(self.tried) < len(self.fleet.endpoints):
                wait = 0.0
            elif wait is not None:
                self.tried.clear()
        elif isinstance(error, errors.DeadlineError):
            endpoint.avoid_until = now + _PENALTY
            raise error from None
        elif not isinstance(error, errors.OverloadedError):
            raise error from None
        if wait is None or (self.patience_at is None and self.number >= _ATTEMPTS_WITHOUT_DEADLINE):
            raise error from None
        wait *= random.uniform(1, 1.2)  # so that those refused together do not come back together
        if self.patience_at is not None and now + wait >= self.patience_at:
            raise error from None
        return wait
