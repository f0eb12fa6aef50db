"""From what callers have (arrays, lists, tables, ragged columns) to the tensors that a model takes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import _tensors
from ._tensors import Array
from .errors import InvalidError
from .model import Model, Port, RaggedFeature


@dataclasses.dataclass(frozen=True)
class Ragged:
    """A ragged column, as most libraries have it: all values, one row after the other, and how many
    each row has.

    Attributes:
        values: shape (sum of lengths,) or (sum of lengths, width).
        lengths: shape (rows,), of integers.
    """

    values: Array
    lengths: Array


def tensors_of(
    model: Model, given: object, named: Mapping[str, object]
) -> list[tuple[Port, Array]]:
    """The model's inputs of a query, in the order given, as arrays of the model's types.

    given is a mapping or table of inputs, or None; named are more of them.
    """
    inputs = _columns_of(model, given) if given is not None else {}
    if named:
        inputs.update(named)
    out: list[tuple[Port, Array]] = []
    ports, ragged = model.inputs, model.ragged
    for name, value in inputs.items():
        port = ports.get(name)
        if port is None:
            if ports:
                raise InvalidError(
                    f"model {model.name!r} has no input {name!r}: it has {', '.join(ports)}",
                    code="INVALID_ARGUMENT",
                    reason="invalid",
                )
            array = np.asarray(value)
            out.append((Port(name, _tensors.datatype_of(array), array.shape), array))
            continue
        try:
            feature = ragged.get(name)
            if feature is not None and feature.index not in inputs:
                out += _ragged_tensors(model, feature, value, inputs)
            elif not any(name == f.weights and f.index not in inputs for f in ragged.values()):
                out.append((port, _tensor(port, value)))
        except (TypeError, ValueError) as e:
            if isinstance(e, InvalidError):
                raise
            raise InvalidError(str(e), code="INVALID_ARGUMENT", reason="invalid") from e
    return out


def _tensor(port: Port, value: object) -> Array:
    """An input that is not ragged."""
    if type(value) is np.ndarray:
        array = value
        if (
            array.dtype == _tensors.DTYPES.get(port.datatype)
            and array.flags.c_contiguous
            and array.ndim == len(port.shape)
        ):
            return array
    else:
        array = _array_of(value)
    array = _tensors.cast(array, port.datatype, port.name)
    return _with_rank(port, array)


def _with_rank(port: Port, array: Array) -> Array:
    """The array with a dimension more, where one row, or one column, is meant."""
    if array.ndim == 0 and port.shape:
        return array.reshape((1,) * len(port.shape))
    if array.ndim != len(port.shape) - 1:
        return array
    if port.shape[-1] == 1 or (port.shape[-1] < 0 and port.shape[0] >= 0):
        return array[..., np.newaxis]
    return array[np.newaxis]


def _columns_of(model: Model, given: object) -> dict[str, object]:
    """The inputs in a mapping or table. A table's columns that are no inputs are left out; if none is,
    and the model has one input, the table is that input's matrix."""
    if isinstance(given, Mapping):
        return dict(given)
    names = _column_names(given)
    if names is None:
        if len(model.inputs) == 1:
            return {next(iter(model.inputs)): given}
        raise InvalidError(
            f"the inputs are a {type(given).__name__}, expected a mapping or a table with columns "
            f"{', '.join(model.inputs)}",
            code="INVALID_ARGUMENT",
            reason="invalid",
        )
    columns = {name: _column(given, name) for name in names if name in model.inputs}
    if not columns and len(model.inputs) == 1:
        return {next(iter(model.inputs)): given}
    return columns


def _column_names(table: object) -> list[str] | None:
    for attribute in ("column_names", "columns"):  # pyarrow's; pandas' and polars'
        names = getattr(table, attribute, None)
        if isinstance(names, Iterable) and not callable(names) and names is not None:
            listed = list(names)
            if all(isinstance(n, str) for n in listed):
                return listed
            return [] if hasattr(table, "to_numpy") else None
    return None


def _column(table: Any, name: str) -> object:
    return table.column(name) if hasattr(table, "column") else table[name]


def _array_of(value: Any) -> Array:
    """A dense array of a list, scalar, column or table."""
    if _is_arrow(value):
        value = _arrow_array(value)
        width = getattr(value.type, "list_size", None)
        if width is not None:
            return np.asarray(value.flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)
        return np.asarray(value.to_numpy(zero_copy_only=False))
    if type(value).__module__.startswith("pyarrow"):  # a table
        return np.column_stack([_array_of(value.column(n)) for n in value.column_names])
    if isinstance(value, (str, bytes)):
        return np.array(value, dtype=object)
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    elif hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor
        value = value.detach().cpu().numpy()
    array = np.asarray(value) if not isinstance(value, (list, tuple)) else _of_list(value)
    nested = array.dtype.kind == "O" and array.ndim == 1 and array.size > 0
    if nested and isinstance(array[0], (list, tuple, np.ndarray)):
        return np.array([np.asarray(x) for x in array])
    return array


def _of_list(value: list[Any] | tuple[Any, ...]) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise ValueError(
            f"a list of lists of unlike lengths, where the model takes none: {e}"
        ) from e
    return array.astype(object) if array.dtype.kind in "SU" else array


def _is_arrow(value: object) -> bool:
    return type(value).__module__.startswith("pyarrow") and hasattr(value, "type")


def _arrow_array(value: Any) -> Any:
    return value.combine_chunks() if hasattr(value, "combine_chunks") else value


def ragged_of(value: Any, per_user: bool = False) -> Ragged:
    """A ragged column of lists of lists, an Arrow or polars list column, or a pandas column of lists;
    of a user also a plain list, which is the user's."""
    if isinstance(value, Ragged):
        return Ragged(np.asarray(value.values), np.asarray(value.lengths).reshape(-1))
    if type(value).__module__.startswith("polars") and hasattr(value, "to_arrow"):
        value = value.to_arrow()
    if _is_arrow(value):
        value = _arrow_array(value)
        if hasattr(value, "value_lengths"):
            lengths = value.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            return Ragged(_array_of(value.flatten()), np.asarray(lengths, dtype=np.int64))
        value = _array_of(value)
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        if value.ndim <= 1:
            if not per_user:
                raise ValueError(
                    "a ragged input is a list of lists, a column of lists or muster.Ragged, "
                    f"found an array of shape {value.shape}"
                )
            value = value.reshape(1, -1)
        rows, width = value.shape[:2]
        return Ragged(value.reshape(-1, *value.shape[2:]), np.full(rows, width, np.int64))
    rows = list(value)
    if per_user and (not rows or not isinstance(rows[0], (list, tuple, np.ndarray))):
        rows = [rows]
    if any(not isinstance(r, (list, tuple, np.ndarray)) for r in rows):
        raise ValueError("a ragged input is a list of lists: found a value that is no list")
    lengths = np.fromiter((len(r) for r in rows), np.int64, len(rows))
    filled = [_array_of(r) for r in rows if len(r)]
    return Ragged(np.concatenate(filled) if filled else np.empty(0), lengths)


def _ragged_tensors(
    model: Model, feature: RaggedFeature, value: Any, inputs: Mapping[str, object]
) -> list[tuple[Port, Array]]:
    """The values of a ragged feature, their weights, and the index that says which are whose."""
    user = feature.per == "user"
    columns = _keys_of(feature, value, user)
    weights = inputs.get(feature.weights) if feature.weights else None
    weighted = _keys_of(feature, weights, user) if weights is not None else []
    lengths = np.stack([c.lengths for c in columns])  # of keys by rows
    for c, w in zip(columns, weighted):
        if not np.array_equal(c.lengths, w.lengths):
            raise ValueError(
                f"input {feature.weights!r} has other lengths than {feature.values!r}: "
                "each value has one weight"
            )
    out = [
        (model.inputs[name], _values(model.inputs[name], feature, cs, lengths))
        for name, cs in ((feature.values, columns), (feature.weights, weighted))
        if cs
    ]
    ordered = lengths if feature.key_major else lengths.T
    flat = ordered.reshape(-1)
    port = model.inputs[feature.index]
    if feature.form == "lengths":
        index = ordered if len(port.shape) == 2 else flat
    else:
        index = np.concatenate([np.zeros(1, np.int64), np.cumsum(flat)])
        if feature.form == "offsets" and not feature.last_offset:
            index = index[:-1]
    return [*out, (port, _tensors.cast(index, port.datatype, port.name))]


def _keys_of(feature: RaggedFeature, value: Any, user: bool) -> list[Ragged]:
    if feature.keys <= 1:
        return [ragged_of(value, user)]
    columns = [ragged_of(v, user) for v in value]
    if len(columns) != feature.keys or len({len(c.lengths) for c in columns}) != 1:
        raise ValueError(
            f"input {feature.values!r} is of {feature.keys} features: want as many ragged columns of "
            f"as many rows each, found {[len(c.lengths) for c in columns]} rows"
        )
    return columns


def _values(port: Port, feature: RaggedFeature, columns: list[Ragged], lengths: Array) -> Array:
    arrays = [_tensors.cast(np.asarray(c.values), port.datatype, port.name) for c in columns]
    if len(arrays) == 1:
        return arrays[0]
    if feature.key_major:
        return np.concatenate(arrays)
    cuts = [np.split(a, np.cumsum(n)[:-1]) for a, n in zip(arrays, lengths)]
    return np.concatenate([part for row in zip(*cuts) for part in row])


def installed(name: str) -> Any:
    """A library if the program has imported it, else None."""
    return sys.modules.get(name)
