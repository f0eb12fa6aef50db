"""Tensors as numpy has them, and as the protocol has them: raw, little-endian, row-major."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _wire

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
try:
    import ml_dtypes

    BF16: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BF16 = None
if BF16 is not None:
    DTYPES["BF16"] = BF16


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's type."""
    if array.dtype.kind in "OSUT":
        return "BYTES"
    for name, dtype in DTYPES.items():
        if array.dtype == dtype:
            return name
    raise TypeError(f"an array of {array.dtype} has no type in the protocol")


def cast(array: Array, datatype: str, name: str) -> Array:
    """The array in a type of the protocol, C-contiguous. Integers become floats and others of the same
    kind, if each value fits; what would lose more than a float's precision is an error."""
    if datatype == "BYTES":
        return array
    if datatype == "BF16" and BF16 is None:
        return round_to_bf16(cast(array, "FP32", name))
    want = DTYPES.get(datatype)
    if want is None:
        raise TypeError(f"input {name!r} has the type {datatype}, which this client does not know")
    if array.dtype == want:
        return np.ascontiguousarray(array) if array.ndim else array
    kinds = array.dtype.kind + want.kind
    if array.size == 0 or kinds in ("if", "uf", "ff", "bf", "bi", "bu") or "V" in kinds:
        return np.ascontiguousarray(array.astype(want)).reshape(array.shape)
    if array.dtype.kind in "iu" and want.kind in "iu":
        low, high = np.iinfo(want).min, np.iinfo(want).max
        if int(array.min()) < low or int(array.max()) > high:
            raise ValueError(
                f"input {name!r} has values from {array.min()} to {array.max()}, "
                f"but its type is {datatype}: {low} to {high}"
            )
        return np.ascontiguousarray(array.astype(want)).reshape(array.shape)
    if array.dtype.kind == "O" and array.size:
        return cast(np.array(array.tolist()), datatype, name)
    raise TypeError(f"input {name!r} is of {array.dtype}, but the model takes {datatype}")


def round_to_bf16(array: Array) -> Array:
    """FP32 as BF16 in the bits of uint16, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype="<f4").reshape(array.shape).view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype("<u2")


def to_raw(array: Array) -> tuple[Any, int]:
    """The array's bytes, without a copy where it has them, and how many these are."""
    if array.dtype.kind in "OSUT":
        raw = encode_texts(array)
        return raw, len(raw)
    if array.dtype.kind == "V":  # ml_dtypes' have no buffer
        array = array.view("<u2")
    return array.data, array.nbytes


def encode_texts(array: Array) -> bytes:
    """Texts or bytes, each after its length in four bytes."""
    parts: list[bytes] = []
    pack = struct.Struct("<I").pack
    for x in array.reshape(-1).tolist():
        raw = x if isinstance(x, bytes) else str(x).encode()
        parts.append(pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def decode_texts(raw: _wire.Bytes, shape: tuple[int, ...]) -> Array:
    """The reverse: an array of str, or of bytes if one of them is not UTF-8."""
    items: list[bytes] = []
    view, at = memoryview(raw), 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "little")
        items.append(bytes(view[at + 4 : at + 4 + size]))
        at += 4 + size
    out = np.empty(len(items), dtype=object)
    try:
        out[:] = [x.decode() for x in items]
    except UnicodeDecodeError:
        out[:] = items
    return out.reshape(shape)


def from_raw(raw: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
    """An array of an answer, which owns its memory."""
    if datatype == "BYTES":
        return decode_texts(raw, shape)
    dtype = DTYPES.get(datatype)
    if dtype is None and datatype == "BF16":
        wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    if dtype is None:
        raise TypeError(f"an output has the type {datatype}, which this client does not know")
    if not raw:
        return np.empty(shape, dtype)
    return np.frombuffer(raw, dtype).copy().reshape(shape)
