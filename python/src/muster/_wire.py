"""Protocol Buffers by hand: the few messages of the Open Inference Protocol that a client needs.

A query costs less so than with generated classes: its head is kept from query to query, and its
tensors are never copied into a message object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DOUBLE = struct.Struct("<d")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Bytes = bytes | bytearray | memoryview


def varint(n: int) -> bytes:
    """The number n, of at least 0."""
    if n < 0x80:
        return n.to_bytes(1, "little")
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """A field of text, bytes or a message."""
    return varint(number << 3 | _BYTES) + varint(len(payload)) + payload


def text(number: int, value: str) -> bytes:
    """A field of text; nothing if that is empty."""
    return field(number, value.encode()) if value else b""


def number(tag: int, value: int) -> bytes:
    """A field of an integer, a negative one as a 64-bit number."""
    return varint(tag << 3 | _VARINT) + varint(value & 0xFFFFFFFFFFFFFFFF)


def double(tag: int, value: float) -> bytes:
    """A field of a double."""
    return varint(tag << 3 | _FIXED64) + _DOUBLE.pack(value)


def read_varint(data: Bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def fields(data: Bytes) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: their numbers, and integers or bytes. Doubles and other numbers of
    fixed size come as bytes."""
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        tag, at = read_varint(view, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = read_varint(view, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = read_varint(view, at)
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + size > end:
            raise ValueError(f"a field of {size} bytes, where {end - at} are left")
        yield tag >> 3, view[at : at + size]
        at += size


def as_text(value: int | memoryview) -> str:
    """The text of a field."""
    return str(_as_bytes(value), "utf-8", "replace")


def as_message(value: int | memoryview) -> memoryview:
    """The message or bytes of a field."""
    return _as_bytes(value)


def as_int(value: int | memoryview) -> int:
    """The integer of a field, as a signed 64-bit number."""
    if not isinstance(value, int):
        raise ValueError("bytes where a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def as_double(value: int | memoryview) -> float:
    """The double of a field."""
    (x,) = _DOUBLE.unpack(_as_bytes(value))
    return float(x)


def as_ints(value: int | memoryview) -> list[int]:
    """A repeated int64: one, or several packed ones."""
    if isinstance(value, int):
        return [as_int(value)]
    out, at = [], 0
    while at < len(value):
        n, at = read_varint(value, at)
        out.append(as_int(n))
    return out


def _as_bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes were expected")
    return value


Parameter = bool | int | float | str


def parameter(name: str, value: Parameter) -> bytes:
    """An entry of a map of InferParameter, without the map's tag."""
    if isinstance(value, bool):
        choice = number(1, int(value))
    elif isinstance(value, int):
        choice = number(2, value) if value < 1 << 63 else number(5, value)
    elif isinstance(value, str):
        choice = field(3, value.encode())
    else:
        choice = double(4, value)
    return text(1, name) + field(2, choice)


def read_parameter(entry: Bytes) -> tuple[str, Parameter]:
    """The reverse of parameter."""
    name, value = "", False
    found: Parameter = value
    for key, item in fields(entry):
        if key == 1:
            name = as_text(item)
        elif key == 2:
            for choice, x in fields(as_message(item)):
                if choice == 1:
                    found = bool(x)
                elif choice in (2, 5):
                    found = as_int(x) if choice == 2 else int(as_int(x)) & 0xFFFFFFFFFFFFFFFF
                elif choice == 3:
                    found = as_text(x)
                elif choice == 4:
                    found = as_double(x)
    return name, found
