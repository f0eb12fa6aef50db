"""Which server gets a query, without servers."""

import time

import pytest

import muster
from muster import _fleet, _wire, errors


def endpoint(port, load=0.0, **more):
    return _fleet.Endpoint("10.0.0.1", port, "", load, time.monotonic(), **more)


def status(code, message, reason, delay=None):
    """A google.rpc.Status as an agent sends it."""
    info = _wire.text(1, reason) + _wire.text(2, "muster")
    url = "type.googleapis.com/google.rpc."
    out = _wire.number(1, code) + _wire.text(2, message)
    out += _wire.field(3, _wire.text(1, url + "ErrorInfo") + _wire.field(2, info))
    if delay is not None:
        span = _wire.number(1, int(delay)) + _wire.number(2, round(delay % 1 * 1e9))
        retry = _wire.field(2, _wire.field(1, span))
        out += _wire.field(3, _wire.text(1, url + "RetryInfo") + retry)
    return out


def test_less_loaded():
    """Of two servers the less loaded one is chosen, and one with as much load but fewer queries."""
    busy, idle = endpoint(1, load=2.0), endpoint(2, load=0.1)
    fleet = _fleet.Fleet([busy, idle])
    assert {fleet.choose().port for _ in range(50)} == {2}
    idle.load = busy.load
    fleet.count(busy, 1)
    assert {fleet.choose().port for _ in range(50)} == {2}


def test_old_load():
    """A report counts for nothing after ten seconds, so that the server is tried again."""
    fleet = _fleet.Fleet([endpoint(1, load=2.0), endpoint(2, load=2.0)])
    for e in fleet.endpoints:
        e.load_at -= 11
    assert {fleet.choose().port for _ in range(100)} == {1, 2}


def test_failed_is_avoided():
    fleet = _fleet.Fleet([endpoint(1), endpoint(2), endpoint(3)])
    attempts = _fleet.Attempts(fleet, "q", 5, None)
    assert attempts.after(fleet.endpoints[0], "UNAVAILABLE", "gone", b"") == 0
    assert {_fleet.Attempts(fleet, "", 5, None).next().port for _ in range(100)} == {2, 3}
    assert attempts.after(fleet.endpoints[1], "UNAVAILABLE", "gone", b"") == 0
    with pytest.raises(muster.UnavailableError, match="gone"):
        attempts.after(fleet.endpoints[2], "UNAVAILABLE", "gone", b"")


@pytest.mark.parametrize(("deadline", "waits"), [(10, True), (0.5, False), (None, True)])
def test_refusal(deadline, waits):
    """A refusal is retried after the server's delay and a little more, if the deadline allows it."""
    fleet = _fleet.Fleet([endpoint(1)])
    attempts = _fleet.Attempts(fleet, "q", deadline, None)
    refused = status(8, "too many queries wait", "overloaded", 1.5)
    if waits:
        assert 1.5 <= attempts.after(fleet.endpoints[0], 8, "too many", refused) <= 1.8
    else:
        with pytest.raises(muster.OverloadedError) as found:
            attempts.after(fleet.endpoints[0], 8, "too many", refused)
        assert found.value.retry_after == 1.5
        assert found.value.reason == "overloaded"


def test_refusal_without_delay():
    fleet = _fleet.Fleet([endpoint(1)])
    with pytest.raises(muster.OverloadedError):
        _fleet.Attempts(fleet, "q", 10, None).after(fleet.endpoints[0], 8, "too many", b"")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        ("INVALID_ARGUMENT", "invalid", muster.InvalidError),
        ("INVALID_ARGUMENT", "too_large", muster.TooLargeError),
        ("NOT_FOUND", "not_found", LookupError),
        ("RESOURCE_EXHAUSTED", "limit", muster.LimitError),
        ("RESOURCE_EXHAUSTED", "late", muster.OverloadedError),
        ("DEADLINE_EXCEEDED", "deadline", TimeoutError),
        ("UNAVAILABLE", "draining", ConnectionError),
        ("UNAUTHENTICATED", "", PermissionError),
        ("INTERNAL", "internal", muster.Error),
    ],
)
def test_kinds(code, reason, kind):
    error = errors.from_status(code, "x", status(2, "x", reason) if reason else b"")
    assert isinstance(error, kind)
    assert error.reason == reason
    assert error.what_to_do in str(error)


@pytest.mark.parametrize(
    ("address", "want"),
    [
        ("node1", ("node1", 8001)),
        ("node1:9000", ("node1", 9000)),
        ("[::1]:9000", ("::1", 9000)),
        ("[::1]", ("::1", 8001)),
        ("::1", ("::1", 8001)),
    ],
)
def test_addresses(address, want):
    assert _fleet.split_address(address) == want


@pytest.mark.parametrize("address", ["node1:", "node1:0", "node1:70000", ":8001", "node1:x"])
def test_wrong_addresses(address):
    with pytest.raises(ValueError, match="address"):
        _fleet.split_address(address)
