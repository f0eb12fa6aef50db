"""From a trained model to a version in a model repository that answers as the model does."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import _inputs
from ._client import Client
from ._tensors import Array
from .errors import Error
from .model import Model
from .testing import Agent, find_binary

Arrays = dict[str, Array]


class ExportError(Exception):
    """A model that cannot be exported, or whose export answers otherwise. Nothing was written."""


@dataclasses.dataclass
class _Source:
    """A model of a library.

    Attributes:
        library: its name.
        write: the converters, by name, the best first; each writes a file.
        predict: the model's own outputs for inputs by name, in the order of the exported outputs.
        notes: what is done otherwise than the library does it.
    """

    library: str
    write: dict[str, Callable[[Path], None]]
    predict: Callable[[Arrays], list[Array]]
    inputs: Arrays
    notes: list[str] = dataclasses.field(default_factory=list)


def export(
    model: Any,
    sample: Any,
    path: str | Path,
    *,
    user: Sequence[str] = (),
    outputs: Sequence[str] = (),
    bounds: Mapping[str, Sequence[int]] | None = None,
    qos_target_ms: float | None = None,
    exporter: str = "",
    rows: int = 256,
    tolerance: float = 1e-3,
    binary: str | None = None,
) -> Path:
    """Exports a trained model as the next version of a model in a repository, and checks it.

    The official converter of the model's library writes model.onnx: torch.onnx (with its new exporter,
    else with that by TorchScript), skl2onnx, onnxmltools (LightGBM, XGBoost), CatBoost or Keras. `muster
    models check` must take it. An agent serves it and is asked for the sample and for random rows, and
    each score is compared with the model's own. What differs is printed; a model that differs by more
    than the tolerance is refused, and nothing is written.

    Args:
        model: a torch.nn.Module, an estimator of scikit-learn, LightGBM, XGBoost or CatBoost, or a
            Keras model. It is used as it is: call model.eval() yourself.
        sample: rows as the model takes them: an array or table, a tuple of them, or a mapping by name.
            Its first dimension is the rows; some hundred rows show more than one does.
        path: "repository/name"; the version is the next one.
        user: inputs of the user, who is sent once for many candidates; of a torch or Keras model.
        outputs: names of the outputs of a torch model; (): "output", "output_1" and so on.
        bounds: of inputs of ids, the number of rows of each column's embedding table; None: what
            Muster reads from the model.
        qos_target_ms: milliseconds within which answers are due, for model.yaml.
        exporter: of torch, "dynamo" or "torchscript" alone; "": whichever passes the check.
        rows: how many random rows are compared, drawn around those of the sample.
        tolerance: the largest difference allowed, as a share of the score, or of 1 for smaller ones.
        binary: the command muster; None: muster.testing.find_binary().

    Returns:
        The path of the version, such as Path("repository/name/1").

    Raises:
        ExportError: the model cannot be exported, or answers otherwise.
    """
    path = Path(path)
    binary = binary or find_binary()
    source = _source_of(model, sample, tuple(user), tuple(outputs))
    if exporter:
        if exporter not in source.write:
            raise ExportError(f"exporter {exporter!r}: {source.library} has {list(source.write)}")
        source.write = {exporter: source.write[exporter]}
    settings = _settings(source, tuple(user), bounds, qos_target_ms)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the repository's models, so that the version is renamed into place. Agents skip names that
    # begin with a dot.
    staging = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
    try:
        failures: list[str] = []
        for name, write in source.write.items():
            shutil.rmtree(staging, ignore_errors=True)
            version = staging / path.name / "1"
            version.mkdir(parents=True)
            if settings:
                (staging / path.name / "model.yaml").write_text(settings)
            try:
                report = _try_one(source, name, write, version, binary, rows, tolerance)
            except ExportError as e:
                failures.append(f"{name}: {e}")
                continue
            for failed in failures:
                print(f"not used: {failed}")
            print("\n".join(report))
            return _put(version, path, settings)
        raise ExportError(f"{path.name} is refused. " + "\n".join(failures))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _try_one(
    source: _Source,
    name: str,
    write: Callable[[Path], None],
    version: Path,
    binary: str,
    rows: int,
    tolerance: float,
) -> list[str]:
    """Exports and checks, and returns what to print."""
    try:
        write(version / "model.onnx")
    except Exception as e:  # a converter may raise anything
        raise ExportError(f"the converter failed: {type(e).__name__}: {e}") from e
    checked = subprocess.run(
        [binary, "models", "check", str(version.parent)],
        check=False,
        capture_output=True,
        text=True,
    )
    if checked.returncode != 0:
        raise ExportError(f"muster models check:\n{checked.stdout}{checked.stderr}")
    report = [f"{source.library}, by {name}", *source.notes, checked.stdout.rstrip()]
    with Agent(version.parent.parent, binary=binary) as agent, agent.client() as client:
        described = client.model(version.parent.name)
        inputs = _named(source.inputs, described)
        for what, given in (
            ("the sample", inputs),
            (f"{rows} random rows", _random_rows(inputs, described, rows)),
        ):
            own = {k: v for k, v in zip(source.inputs, given.values(), strict=True)}
            try:
                want = source.predict(own)
                got = _ask(client, described, given)
            except Error as e:
                raise ExportError(f"{what}: Muster refuses them: {e}") from e
            report += _compare(what, described, want, got, tolerance)
    return report


def _put(version: Path, path: Path, settings: str) -> Path:
    """Moves the version to its place, as the next one of its model."""
    path.mkdir(exist_ok=True)
    numbers = [int(p.name) for p in path.iterdir() if p.name.isdigit()]
    target = path / str(max(numbers, default=0) + 1)
    existing = path / "model.yaml"
    if settings and not existing.exists():
        existing.write_text(settings)
    elif settings and existing.read_text() != settings:
        print(f"{existing} stays as it is; the check was made with:\n{settings}")
    version.rename(target)
    print(f"written: {target}")
    return target


def _settings(
    source: _Source,
    user: tuple[str, ...],
    bounds: Mapping[str, Sequence[int]] | None,
    qos_target_ms: float | None,
) -> str:
    """The text of model.yaml; "" if there is nothing to say."""
    lines: list[str] = []
    if user:
        lines += ["requires: 2", f"sent_once: {json.dumps(list(user))}"]
    if qos_target_ms is not None:
        lines.append(f"qos_target_ms: {qos_target_ms:g}")
    for name in [*user, *(bounds or {})]:
        if name not in source.inputs:
            raise ExportError(f"there is no input {name!r}: the sample has {list(source.inputs)}")
    if bounds:
        lines.append("inputs:")
        for name, rows in bounds.items():
            lines += [f"  - name: {json.dumps(name)}", f"    id_bounds: {[int(b) for b in rows]}"]
    return "\n".join([*lines, ""]) if lines else ""


def _named(inputs: Arrays, described: Model) -> Arrays:
    """The inputs by the names of the exported model, which keeps their order."""
    if set(inputs) == set(described.inputs):
        return dict(inputs)
    if len(inputs) != len(described.inputs):
        raise ExportError(f"the sample has {list(inputs)}, the export {list(described.inputs)}")
    return dict(zip(described.inputs, inputs.values(), strict=True))


def _random_rows(inputs: Arrays, described: Model, rows: int) -> Arrays:
    """Rows like those of the sample: each is one of them, with floats moved by a tenth of their column's
    spread and integers drawn anew from their column's range. A user stays the one of the sample."""
    rng = np.random.default_rng(1)
    out: Arrays = {}
    first = next(iter(inputs.values()))
    drawn = rng.integers(0, max(1, len(first)), rows) if first.ndim else np.zeros(1, int)
    batchless = described.properties.get("batchless") == "true"
    for name, array in inputs.items():
        port = described.inputs[name]
        if batchless or port.role != "row" or array.ndim == 0 or len(array) != len(first):
            moved = array
        else:
            moved = array[drawn]
        if port.role == "user" or moved.dtype.kind not in "fiu":
            out[name] = moved
        elif moved.dtype.kind == "f":
            spread = np.nanstd(array, axis=0, keepdims=array.ndim > 0)
            noise = 0.1 * spread * rng.standard_normal(moved.shape)
            out[name] = (moved + noise).astype(array.dtype)
        else:
            low, high = array.min(axis=0), array.max(axis=0)
            out[name] = rng.integers(low, high, moved.shape, endpoint=True).astype(array.dtype)
    return out


def _ask(client: Client, described: Model, inputs: Arrays) -> list[Array]:
    """What an agent answers, in queries of at most as many rows as it takes."""
    most = min(described.largest_batch_size or 1000, 1000)
    row = {n for n, p in described.inputs.items() if p.role == "row" and p.shape[:1] == (-1,)}
    rows = max((len(inputs[n]) for n in row), default=1)
    parts: list[list[Array]] = []
    for at in range(0, max(rows, 1), most):
        cut = {
            n: a[at : at + most] if n in row and len(a) == rows else a for n, a in inputs.items()
        }
        answer = client.predict(described.name, cut, deadline=60)
        parts.append([answer[name] for name in described.outputs])
    return [np.concatenate(p) if p[0].ndim else p[0] for p in zip(*parts, strict=True)]


def _compare(
    what: str, described: Model, want: list[Array], got: list[Array], tolerance: float
) -> list[str]:
    """Lines that say by how much outputs differ; ExportError if that is too much."""
    if len(want) != len(got):
        raise ExportError(f"the model has {len(want)} outputs, the export {len(got)}")
    lines: list[str] = []
    for port, own, exported in zip(described.outputs.values(), want, got, strict=True):
        own = np.asarray(own)
        if own.size != exported.size:
            raise ExportError(
                f"output {port.name}: shape {exported.shape}, the model's {own.shape}"
            )
        own = own.reshape(exported.shape)
        if own.dtype.kind not in "fiub" or exported.dtype.kind not in "fiub":
            unlike = np.asarray(own.astype(str) != exported.astype(str))
            difference = unlike.astype(float)
        else:
            a, b = own.astype(np.float64), exported.astype(np.float64)
            difference = np.abs(a - b) / np.maximum(1, np.abs(a))
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            difference = np.where(same, 0, np.where(np.isnan(difference), np.inf, difference))
        if difference.size == 0:
            continue
        worst = np.unravel_index(int(difference.argmax()), difference.shape)
        lines.append(
            f"{what}: {port.name} differs by {difference.max():.2g} at most, "
            f"{difference.mean():.2g} in the mean"
        )
        off = float((difference > tolerance).mean())
        if off > 0:
            raise ExportError(
                f"{what}: {off:.2%} of output {port.name} differ by more than {tolerance:g}; "
                f"at {[int(i) for i in worst]} the model says {own[worst]}, "
                f"the export {exported[worst]}"
            )
    return lines


def _arrays_of(sample: Any, names: Sequence[str]) -> Arrays:
    """The sample as arrays by name."""
    if isinstance(sample, Mapping):
        return {str(k): _inputs._array_of(v) for k, v in sample.items()}
    parts = sample if isinstance(sample, tuple) else (sample,)
    if len(names) < len(parts):
        raise ExportError(f"the sample has {len(parts)} inputs, the model takes {list(names)}")
    return {name: _inputs._array_of(part) for name, part in zip(names, parts, strict=False)}


def _single(arrays: Arrays) -> Array:
    """FP32 of the features of a model of trees or the like."""
    array = next(iter(arrays.values()))
    return array if array.dtype.kind in "OSU" else array.astype(np.float32)


def _source_of(model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]) -> _Source:
    modules = {c.__module__.split(".")[0] for c in type(model).__mro__}
    for library, make in (
        ("torch", _from_torch),
        ("keras", _from_keras),
        ("lightgbm", _from_lightgbm),
        ("xgboost", _from_xgboost),
        ("catboost", _from_catboost),
        ("sklearn", _from_sklearn),
    ):
        if library in modules:
            return make(model, sample, user, outputs)
    raise ExportError(
        f"a {type(model).__module__}.{type(model).__name__}: expected a model of torch, Keras, "
        "scikit-learn, LightGBM, XGBoost or CatBoost"
    )


def _from_torch(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    import torch

    arrays = _arrays_of(sample, list(inspect.signature(model.forward).parameters))
    names = list(arrays)
    tensors = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}

    def run(inputs: Arrays) -> list[Array]:
        with torch.no_grad():
            found = model(
                **{n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in inputs.items()}
            )
        if isinstance(found, Mapping):
            found = tuple(found.values())
        parts = found if isinstance(found, (tuple, list)) else (found,)
        return [p.detach().cpu().numpy() for p in parts]

    count = len(run(arrays))
    given = list(outputs) or ["output", *(f"output_{i}" for i in range(1, count))]
    axes = {n: {0: "u" if n in user else "n"} for n in names if arrays[n].ndim}

    def dynamo(file: Path) -> None:
        dims = {n: {0: torch.export.Dim(a[0])} for n, a in axes.items()}
        shapes = {n: dims.get(n) for n in names}
        torch.onnx.export(
            model, kwargs=tensors, f=str(file), input_names=names, output_names=given,
            dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False,
        )  # fmt: skip

    def torchscript(file: Path) -> None:
        by_output = {n: {0: "n"} for n in given}
        torch.onnx.export(
            model, tuple(tensors.values()), str(file), input_names=names, output_names=given,
            dynamo=False, dynamic_axes={**axes, **by_output}, opset_version=17,
        )  # fmt: skip

    return _Source("torch", {"dynamo": dynamo, "torchscript": torchscript}, run, arrays)


def _from_keras(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    names = list(getattr(model, "input_names", None) or [i.name for i in model.inputs])
    arrays = _arrays_of(sample, names)

    def run(inputs: Arrays) -> list[Array]:
        given = list(inputs.values())
        found = model(given if len(given) > 1 else given[0], training=False)
        if isinstance(found, Mapping):
            found = list(found.values())
        parts = found if isinstance(found, (tuple, list)) else [found]
        return [np.asarray(p) for p in parts]

    def write(file: Path) -> None:
        run(arrays)  # Keras exports no model that was never called
        model.export(str(file), format="onnx", verbose=False)

    return _Source("Keras", {"keras": write}, run, arrays)


def _from_sklearn(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    from skl2onnx import to_onnx

    steps = [model, *(step for _, step in getattr(model, "steps", []))]
    by_column = any(type(step).__name__ == "ColumnTransformer" for step in steps)
    table = _inputs._column_names(sample) if by_column else None
    notes: list[str] = []
    if table:  # an input for each column
        arrays = {n: _column(sample, n) for n in table}
        example: Any = sample[:1]
    else:
        array = _single({"X": _inputs._array_of(sample)})
        notes += _to_fp32(_inputs._array_of(sample))
        arrays, example = {"X": array}, array[:1]
    classifies = hasattr(model, "predict_proba")

    def run(inputs: Arrays) -> list[Array]:
        if table:
            import pandas

            given: Any = pandas.DataFrame({n: a.reshape(-1) for n, a in inputs.items()})
        else:
            given = inputs["X"]
        if classifies:
            return [model.predict(given), model.predict_proba(given)]
        if hasattr(model, "predict"):
            return [np.asarray(model.predict(given))]
        return [np.asarray(model.transform(given))]

    def write(file: Path) -> None:
        options = {"zipmap": False} if classifies else None
        converted = to_onnx(model, example, options=options)
        file.write_bytes(converted.SerializeToString())

    if classifies:
        notes.append("probabilities are one tensor, with a column for each class")
    return _Source("scikit-learn", {"skl2onnx": write}, run, arrays, notes)


def _column(table: Any, name: str) -> Array:
    array = _inputs._array_of(table[name])
    return array.reshape(-1, 1)


def _to_fp32(array: Array) -> list[str]:
    return [] if array.dtype == np.float32 else [f"features are FP32; the sample has {array.dtype}"]


def _from_trees(library: str, model: Any, sample: Any, convert: Callable[[int], Any]) -> _Source:
    array = _inputs._array_of(sample)
    features = _single({"x": array})
    classifies = hasattr(model, "predict_proba")

    def run(inputs: Arrays) -> list[Array]:
        given: Any = inputs["input"]
        if type(model).__module__.startswith("xgboost") and type(model).__name__ == "Booster":
            import xgboost

            given = xgboost.DMatrix(given)
        found = np.asarray(model.predict(given))
        return [found, np.asarray(model.predict_proba(given))] if classifies else [found]

    def write(file: Path) -> None:
        file.write_bytes(convert(features.shape[1]).SerializeToString())

    return _Source(library, {"onnxmltools": write}, run, {"input": features}, _to_fp32(array))


def _from_lightgbm(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    return _from_trees(
        "LightGBM",
        model,
        sample,
        lambda n: onnxmltools.convert_lightgbm(
            model, initial_types=[("input", FloatTensorType([None, n]))], zipmap=False
        ),
    )


def _from_xgboost(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    return _from_trees(
        "XGBoost",
        model,
        sample,
        lambda n: onnxmltools.convert_xgboost(
            model, initial_types=[("input", FloatTensorType([None, n]))]
        ),
    )


def _from_catboost(
    model: Any, sample: Any, user: tuple[str, ...], outputs: tuple[str, ...]
) -> _Source:
    array = _inputs._array_of(sample)
    classifies = hasattr(model, "predict_proba")

    def run(inputs: Arrays) -> list[Array]:
        given = inputs["features"]
        found = np.asarray(model.predict(given))
        return [found, np.asarray(model.predict_proba(given))] if classifies else [found]

    def write(file: Path) -> None:
        model.save_model(str(file), format="onnx")

    features = {"features": _single({"features": array})}
    return _Source("CatBoost", {"catboost": write}, run, features, _to_fp32(array))
