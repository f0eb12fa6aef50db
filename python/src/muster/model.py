"""What a server says about a model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from . import _wire


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: its name.
        datatype: the protocol's type: BOOL, INT8 to INT64, UINT8 to UINT64, FP16, FP32, FP64, BF16, BYTES.
        shape: its dimensions; -1 for each that a query chooses.
        role: "row" (the first dimension is the candidates), "user", "query" or "ragged".
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    role: str = "row"


@dataclasses.dataclass(frozen=True)
class RaggedFeature:
    """A feature of several values a row or user: the input `values`, and the input `index` that says
    which are whose, in the form "lengths", "offsets" or "row_splits"."""

    values: str
    index: str
    form: str
    per: str = "row"
    weights: str = ""
    keys: int = 1
    key_major: bool = False
    last_offset: bool = False


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, or a family of models, as a server describes it.

    Attributes:
        name: its name.
        versions: the versions that are served.
        inputs, outputs: by name, in the model's order.
        ragged: its ragged features, by the name of their values.
        optional: inputs that a query may leave out.
        qos_target: seconds within which answers are due; None if nothing is said.
        deadline: seconds after which the server drops a query that has no deadline of its own.
        largest_batch_size: the most rows or candidates of a query; None if nothing is said.
        variants: a family's models, the most accurate first.
        properties: all that the server says beyond the protocol, as it says it.
    """

    name: str
    versions: tuple[str, ...]
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    ragged: Mapping[str, RaggedFeature]
    optional: tuple[str, ...] = ()
    qos_target: float | None = None
    deadline: float | None = None
    largest_batch_size: int | None = None
    variants: tuple[str, ...] = ()
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def labels(self, output: str) -> list[str] | None:
        """The names of an output's columns, if the model says them."""
        text = self.properties.get(f"labels.{output}")
        return [str(x) for x in json.loads(text)] if text else None


def request(name: str, version: str) -> bytes:
    """A ModelMetadataRequest, ModelReadyRequest or ModelConfigRequest."""
    return _wire.text(1, name) + _wire.text(2, version)


def parse(data: bytes) -> Model:
    """A ModelMetadataResponse."""
    name = ""
    versions: list[str] = []
    inputs: list[Port] = []
    outputs: list[Port] = []
    properties: dict[str, str] = {}
    for key, value in _wire.fields(data):
        if key == 1:
            name = _wire.as_text(value)
        elif key == 2:
            versions.append(_wire.as_text(value))
        elif key == 4:
            inputs.append(_parse_port(_wire.as_message(value)))
        elif key == 5:
            outputs.append(_parse_port(_wire.as_message(value)))
        elif key == 6:
            entry = dict(_wire.fields(_wire.as_message(value)))
            empty = memoryview(b"")
            properties[_wire.as_text(entry.get(1, empty))] = _wire.as_text(entry.get(2, empty))
    ragged: dict[str, RaggedFeature] = {}
    if text := properties.get("roles"):
        roles = json.loads(text)
        inputs = _with_roles(inputs, roles.get("inputs") or [])
        outputs = _with_roles(outputs, roles.get("outputs") or [])
        known = {f.name for f in dataclasses.fields(RaggedFeature)}
        for feature in roles.get("ragged") or []:
            ragged[feature["values"]] = RaggedFeature(
                **{k: v for k, v in feature.items() if k in known}
            )

    def number(key: str, unit: float) -> float | None:
        return float(properties[key]) * unit if key in properties else None

    largest = number("largest_batch_size", 1)
    return Model(
        name=name,
        versions=tuple(versions),
        inputs={p.name: p for p in inputs},
        outputs={p.name: p for p in outputs},
        ragged=ragged,
        optional=tuple(json.loads(properties.get("optional") or "[]")),
        qos_target=number("qos_target_ms", 1e-3),
        deadline=number("deadline_ms", 1e-3),
        largest_batch_size=int(largest) if largest else None,
        variants=tuple(v for v in properties.get("variants", "").split(",") if v),
        properties=properties,
    )


def _parse_port(data: memoryview) -> Port:
    name = datatype = ""
    shape: list[int] = []
    for key, value in _wire.fields(data):
        if key == 1:
            name = _wire.as_text(value)
        elif key == 2:
            datatype = _wire.as_text(value)
        elif key == 3:
            shape += _wire.as_ints(value)
    return Port(name, datatype, tuple(shape))


def _with_roles(ports: list[Port], roles: list[dict[str, str]]) -> list[Port]:
    known = {r["name"]: r["role"] for r in roles}
    return [dataclasses.replace(p, role=known.get(p.name, p.role)) for p in ports]
