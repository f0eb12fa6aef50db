"""Writes MiniDLRM as a model of a repository: 26 tables of 100,000 rows of 64, 13 dense inputs.

The dense inputs pass layers of 512, 256 and 64; their result and the looked-up rows are multiplied
pair by pair; layers of 512, 256 and 1 follow. Arguments: the repository's folder.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TABLES, ROWS, DIM, DENSE = 26, 100_000, 64, 13
YAML = """qos_target_ms: 1000
deadline_ms: 60000
largest_batch_size: 1000
rows_independent: true
warm_up: [1, 32]
"""


def main():
    folder = Path(sys.argv[1]) / "dlrm"
    if (folder / "model.yaml").exists():
        return
    (folder / "1").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(21)
    weights, nodes = [], []

    def weight(name, *shape):
        values = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
        weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(name, values):
        weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def node(op, inputs, output, **attributes):
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def layers(name, value, sizes, last):
        for i, (n, m) in enumerate(itertools.pairwise(sizes)):
            at = f"{name}{i}"
            parameters = [weight(at + ".w", n, m), weight(at + ".b", m)]
            value = node("Gemm", [value, *parameters], at)
            op = last if i == len(sizes) - 2 else "Relu"
            value = node(op, [value], at + ".out")
        return value

    bottom = layers("bottom", "dense", [DENSE, 512, 256, DIM], "Relu")
    axis = constant("axis", [1])
    vectors = [node("Unsqueeze", [bottom, axis], "bottom3")]
    for i in range(TABLES):
        column = node("Gather", ["ids", constant(f"column{i}", [i])], f"ids{i}", axis=1)
        vectors.append(
            node("Gather", [weight(f"table{i}", ROWS, DIM), column], f"row{i}", axis=0)
        )
    all_vectors = node("Concat", vectors, "vectors", axis=1)
    turned = node("Transpose", [all_vectors], "turned", perm=[0, 2, 1])
    products = node("MatMul", [all_vectors, turned], "products")
    n = TABLES + 1
    flat = node("Reshape", [products, constant("flat", [-1, n * n])], "pairs")
    lower = [i * n + j for i in range(n) for j in range(i)]
    pairs = node("Gather", [flat, constant("lower", lower)], "lower_pairs", axis=1)
    top = node("Concat", [bottom, pairs], "top_in", axis=1)
    scores = layers("top", top, [DIM + len(lower), 512, 256, 1], "Sigmoid")
    node("Identity", [scores], "scores")

    graph = helper.make_graph(
        nodes,
        "dlrm",
        [
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["batch", DENSE]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", TABLES]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 1])],
        weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save_model(
        model,
        folder / "1" / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
    )
    (folder / "model.yaml").write_text(YAML)


main()
