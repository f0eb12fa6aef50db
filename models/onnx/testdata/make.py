"""Writes subgraphs.onnx and subgraphs.data with the onnx package, as exporters do:
a default value for an input, weights in nested graphs, data beside the model."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

w = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
then_w = numpy_helper.from_array(np.full((2,), 2, np.float32), "then_w")
else_w = numpy_helper.from_array(np.full((2,), 3, np.float32), "else_w")
offset = 0
with open("subgraphs.data", "wb") as f:
    for t in (w, then_w, else_w):
        raw = t.raw_data
        f.write(raw)
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for k, v in (
            ("location", "subgraphs.data"),
            ("offset", offset),
            ("length", len(raw)),
        ):
            t.external_data.add(key=k, value=str(v))
        offset += len(raw)


def branch(constant):
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])
    return helper.make_graph(
        [helper.make_node("Constant", [], ["b"], value=constant)], "branch", [], [out]
    )


graph = helper.make_graph(
    [
        helper.make_node("MatMul", ["x", "w"], ["y0"]),
        helper.make_node(
            "If",
            ["flag"],
            ["bias"],
            then_branch=branch(then_w),
            else_branch=branch(else_w),
        ),
        helper.make_node("Add", ["y0", "bias"], ["y"]),
    ],
    "g",
    [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]),
    ],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    [w, helper.make_tensor("flag", TensorProto.BOOL, [], [True])],
)
model = helper.make_model(
    graph,
    producer_name="onnx-helper",
    opset_imports=[
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.microsoft", 1),
    ],
    ir_version=8,
)
onnx.save(model, "subgraphs.onnx")
