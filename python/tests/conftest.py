"""The models that the tests' agent serves."""

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from muster.testing import find_binary

DATATYPES = {
    "BOOL": TensorProto.BOOL,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}


def save(repository: Path, name: str, nodes, inputs, outputs, constants=(), settings=""):
    """Writes a model; inputs and outputs are names, types and shapes."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*x) for x in inputs],
        [helper.make_tensor_value_info(*x) for x in outputs],
        [numpy_helper.from_array(value, key) for key, value in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    if settings:
        (repository / name / "model.yaml").write_text(settings)


def save_echo(repository: Path) -> None:
    """A model that answers each input of each type as it is."""
    names = [d.lower() for d in DATATYPES]
    save(
        repository,
        "echo",
        [helper.make_node("Identity", [n], [f"{n}_out"]) for n in names],
        [(n, t, ["n", 2]) for n, t in zip(names, DATATYPES.values(), strict=True)],
        [(f"{n}_out", t, ["n", 2]) for n, t in zip(names, DATATYPES.values(), strict=True)],
        settings="largest_batch_size: 10000\n",
    )


def save_tags(repository: Path, name: str, form: str) -> None:
    """A ranker: the score of a row is its item, times the user's id, plus the sum of its tags."""
    index = f"tag_{form}"
    to_ends = {
        "lengths": [
            helper.make_node("CumSum", [index, "zero"], ["ends"]),
            helper.make_node("Sub", ["ends", index], ["starts"]),
        ],
        "row_splits": [
            helper.make_node("Slice", [index, "ones", "big"], ["ends"]),
            helper.make_node("Slice", [index, "zeros", "minus"], ["starts"]),
        ],
    }[form]
    save(
        repository,
        name,
        [
            *to_ends,
            helper.make_node("CumSum", ["tags", "zero"], ["sums"]),
            helper.make_node("Concat", ["none", "sums"], ["padded"], axis=0),
            helper.make_node("Gather", ["padded", "ends"], ["to"]),
            helper.make_node("Gather", ["padded", "starts"], ["from"]),
            helper.make_node("Sub", ["to", "from"], ["tag_sums"]),
            helper.make_node("Mul", ["user_id", "item_ids"], ["products"]),
            helper.make_node("Add", ["products", "tag_sums"], ["scores"]),
        ],
        [
            ("user_id", TensorProto.FLOAT, ["u"]),
            ("item_ids", TensorProto.FLOAT, ["n"]),
            ("tags", TensorProto.FLOAT, ["v"]),
            (index, TensorProto.INT64, ["n" if form == "lengths" else "m"]),
        ],
        [("scores", TensorProto.FLOAT, ["n"])],
        [
            ("zero", np.array(0, np.int64)),
            ("none", np.zeros(1, np.float32)),
            ("ones", np.array([1], np.int64)),
            ("zeros", np.array([0], np.int64)),
            ("minus", np.array([-1], np.int64)),
            ("big", np.array([2**31], np.int64)),
        ],
        "requires: 2\nsent_once: [user_id]\n"
        f"ragged:\n  - {{values: tags, {form}: {index}, per: row}}\n",
    )


@pytest.fixture(scope="session")
def muster_models(tmp_path_factory):
    """A repository of small models."""
    repository = tmp_path_factory.mktemp("models")
    subprocess.run(
        [find_binary(), "models", "generate", "ncf", "--scale", "small", "--out", repository],
        check=True,
        capture_output=True,
    )
    settings = (repository / "ncf" / "model.yaml").read_text()
    # Others compute, too.
    settings = re.sub(r"(?m)^deadline_ms: .*", "deadline_ms: 60000", settings)
    (repository / "ncf" / "model.yaml").write_text(settings)
    for name, accuracy in (("best", 1.0), ("fast", 0.9)):
        save(
            repository,
            name,
            [helper.make_node("Mul", ["x", "factor"], ["y"])],
            [("x", TensorProto.FLOAT, ["n", 2])],
            [("y", TensorProto.FLOAT, ["n", 2])],
            [("factor", np.array(2 if name == "best" else 3, np.float32))],
            f"family: doubles\naccuracy: {accuracy}\n",
        )
    save_echo(repository)
    save_tags(repository, "tags", "lengths")
    save_tags(repository, "splits", "row_splits")
    return repository


@pytest.fixture
def client(muster_agent):
    """A client of the session's agent, on connections for queries."""
    with muster_agent.client() as c:
        c.wait_ready("ncf")
        yield c
