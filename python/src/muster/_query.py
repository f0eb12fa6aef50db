"""Queries as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import _tensors, _wire
from ._tensors import Array
from .model import Model, Port

# Heads that a model keeps: one for each combination of shapes and parameters that was seen. Chosen:
# a ranker's numbers of candidates have some hundreds.
_MOST_HEADS = 1024


class Known:
    """A model with the heads of its queries so far."""

    __slots__ = ("heads", "model", "version")

    def __init__(self, model: Model, version: str) -> None:
        self.model = model
        self.version = version
        self.heads: dict[object, tuple[bytes, tuple[bytes, ...]]] = {}

    def encode(
        self,
        tensors: list[tuple[Port, Array]],
        outputs: Sequence[str],
        id: str,
        parameters: Mapping[str, _wire.Parameter] | None,
    ) -> tuple[list[Any], int]:
        """A ModelInferRequest as buffers, which are the tensors' own memory, and their bytes."""
        key = (
            tuple([(port.name, array.shape) for port, array in tensors]),
            tuple(outputs),
            tuple(parameters.items()) if parameters else None,
        )
        found = self.heads.get(key)
        if found is None:
            found = self._make_head(tensors, outputs, parameters)
            if len(self.heads) >= _MOST_HEADS:
                self.heads.clear()
            self.heads[key] = found
        head, prefixes = found
        name = id.encode()
        first = b"".join(
            (head, b"\x1a", _wire.varint(len(name)), name, prefixes[0] if prefixes else b"")
        )
        parts: list[Any] = [first]
        total = len(first)
        for i, (port, array) in enumerate(tensors):
            raw, size = _tensors.to_raw(array)
            if port.datatype == "BYTES":
                prefix = b"\x3a" + _wire.varint(size)
            else:
                prefix = prefixes[i]
            if i or port.datatype == "BYTES":
                parts.append(prefix)
                total += len(prefix)
            parts.append(raw)
            total += size
        return parts, total

    def _make_head(
        self,
        tensors: list[tuple[Port, Array]],
        outputs: Sequence[str],
        parameters: Mapping[str, _wire.Parameter] | None,
    ) -> tuple[bytes, tuple[bytes, ...]]:
        head = [_wire.text(1, self.model.name), _wire.text(2, self.version)]
        for name, value in (parameters or {}).items():
            head.append(_wire.field(4, _wire.parameter(name, value)))
        prefixes: list[bytes] = []
        for port, array in tensors:
            shape = b"".join(_wire.varint(n) for n in array.shape)
            head.append(
                _wire.field(
                    5,
                    _wire.text(1, port.name)
                    + _wire.text(2, port.datatype)
                    + (_wire.field(3, shape) if shape else b""),
                )
            )
            texts = port.datatype == "BYTES"
            prefixes.append(b"" if texts else b"\x3a" + _wire.varint(array.nbytes))
        head += [_wire.field(6, _wire.text(1, name)) for name in outputs]
        return b"".join(head), tuple(prefixes)
