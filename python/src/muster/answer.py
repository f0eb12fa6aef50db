"""Answers of queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from . import _tensors, _wire, errors
from ._tensors import Array
from .model import Model

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Answer(Mapping[str, Array]):
    """The outputs of a query, by name: `answer["scores"]` is an array whose first dimension is the
    query's rows. Arrays own their memory and may be written.

    Attributes:
        model: the model or family that was asked, and `version` its version; "" of a family.
        id: the query's id.
        variant, variant_version: the model of the family that has answered; "" without a family.
        accuracy: that model's accuracy beside the best of its family, in (0, 1]; None if not said.
        emulated: whether no model has run, but an emulated agent.
        parameters: all parameters of the answer.
    """

    __slots__ = ("_described", "_outputs", "id", "model", "parameters", "version")

    def __init__(
        self,
        outputs: dict[str, Array],
        model: str = "",
        version: str = "",
        id: str = "",
        parameters: Mapping[str, _wire.Parameter] | None = None,
        described: Model | None = None,
    ) -> None:
        self._outputs = outputs
        self.model, self.version, self.id = model, version, id
        self.parameters: Mapping[str, _wire.Parameter] = parameters or {}
        self._described = described

    def __getitem__(self, name: str) -> Array:
        try:
            return self._outputs[name]
        except KeyError:
            raise KeyError(f"{name!r}: the answer has {', '.join(self._outputs)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in self._outputs.items())
        return f"<Answer of {self.variant or self.model}: {shapes}>"

    @property
    def variant(self) -> str:
        return str(self.parameters.get("variant", ""))

    @property
    def variant_version(self) -> str:
        return str(self.parameters.get("variant_version", ""))

    @property
    def accuracy(self) -> float | None:
        found = self.parameters.get("accuracy")
        return None if found is None else float(found)

    @property
    def emulated(self) -> bool:
        return bool(self.parameters.get("emulated", False))

    def columns(self) -> dict[str, Array]:
        """The outputs as columns of a table: one of one column keeps its name, another one has its
        labels, or its name and the column's number."""
        out: dict[str, Array] = {}
        for name, array in self._outputs.items():
            flat = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
            if flat.shape[1] == 1:
                out[name] = flat[:, 0]
                continue
            labels = self._described.labels(name) if self._described else None
            for i in range(flat.shape[1]):
                label = labels[i] if labels and len(labels) == flat.shape[1] else i
                out[f"{name}.{label}"] = flat[:, i]
        return out

    def to_pandas(self) -> pandas.DataFrame:
        """The outputs as a table of pandas, a row for each row of the query."""
        import pandas

        return pandas.DataFrame(self._even_columns())

    def to_polars(self) -> polars.DataFrame:
        """The outputs as a table of polars, a row for each row of the query."""
        import polars

        return polars.DataFrame(
            {n: np.ascontiguousarray(a) for n, a in self._even_columns().items()}
        )

    def to_arrow(self) -> pyarrow.Table:
        """The outputs as a table of Arrow, a row for each row of the query."""
        import pyarrow

        return pyarrow.table(self._even_columns())

    def _even_columns(self) -> dict[str, Array]:
        columns = self.columns()
        if len({len(c) for c in columns.values()}) > 1:
            lengths = {n: len(c) for n, c in columns.items()}
            raise ValueError(f"outputs with unlike numbers of rows are no table: {lengths}")
        return columns


# The parts of answers that repeat from answer to answer, decoded: a client sees few.
_OUTPUTS: dict[bytes, tuple[str, str, tuple[int, ...]]] = {}
_MOST_OUTPUTS = 4096


def decode(data: memoryview, described: Model | None = None) -> Answer:
    """The answer in a ModelInferResponse. It keeps nothing of data. An answer that cannot be read is
    an Error."""
    try:
        return _decode(data, described)
    except (ValueError, TypeError, IndexError) as e:
        raise errors.Error(f"the answer cannot be read: {e}", code="INTERNAL") from e


def _decode(data: memoryview, described: Model | None) -> Answer:
    names: list[tuple[str, str, tuple[int, ...]]] = []
    raws: list[memoryview] = []
    model = version = id = ""
    parameters: dict[str, _wire.Parameter] | None = None
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        size = data[at + 1]
        if tag & 0x87 != 2:  # a number of more than one byte, or no bytes: other servers' fields
            return _decode_slowly(data, described)
        at += 2
        if size >= 0x80:
            size, at = _wire.read_varint(data, at - 1)
        value = data[at : at + size]
        at += size
        if tag == 0x32:
            raws.append(value)
        elif tag == 0x2A:
            known = _OUTPUTS.get(key := bytes(value))
            if known is None:
                known = _decode_output(value)
                if len(_OUTPUTS) < _MOST_OUTPUTS:
                    _OUTPUTS[key] = known
            names.append(known)
        elif tag == 0x0A:
            model = str(value, "utf-8")
        elif tag == 0x12:
            version = str(value, "utf-8")
        elif tag == 0x1A:
            id = str(value, "utf-8")
        elif tag == 0x22:
            parameters = parameters or {}
            name, found = _wire.read_parameter(value)
            parameters[name] = found
    if at != end or len(raws) != len(names):
        return _decode_slowly(data, described)
    outputs = {n[0]: _tensors.from_raw(raw, n[1], n[2]) for n, raw in zip(names, raws)}
    return Answer(outputs, model, version, id, parameters, described)


def _decode_output(data: memoryview) -> tuple[str, str, tuple[int, ...]]:
    name = datatype = ""
    shape: list[int] = []
    for key, value in _wire.fields(data):
        if key == 1:
            name = _wire.as_text(value)
        elif key == 2:
            datatype = _wire.as_text(value)
        elif key == 3:
            shape += _wire.as_ints(value)
    return name, datatype, tuple(shape)


def _decode_slowly(data: memoryview, described: Model | None) -> Answer:
    """An answer with fields that this client does not know, or with a fault."""
    names: list[tuple[str, str, tuple[int, ...]]] = []
    raws: list[memoryview] = []
    texts = {1: "", 2: "", 3: ""}
    parameters: dict[str, _wire.Parameter] = {}
    for key, value in _wire.fields(data):
        if key in texts:
            texts[key] = _wire.as_text(value)
        elif key == 4:
            name, found = _wire.read_parameter(_wire.as_message(value))
            parameters[name] = found
        elif key == 5:
            names.append(_decode_output(_wire.as_message(value)))
        elif key == 6:
            raws.append(_wire.as_message(value))
    if len(raws) != len(names):
        raise ValueError(f"an answer with {len(names)} outputs, but {len(raws)} raw contents")
    outputs = {n[0]: _tensors.from_raw(raw, n[1], n[2]) for n, raw in zip(names, raws)}
    return Answer(outputs, texts[1], texts[2], texts[3], parameters, described)
