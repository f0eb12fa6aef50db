"""Writes subgraphs.onnx and subgraphs.data with the onnx package, as exporters do:
a default value for an input, weights in nested graphs, data beside the model. Also
functions.onnx and functions.data: the same in functions of the model."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

w = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
then_w = numpy_helper.from_array(np.full((2,), 2, np.float32), "then_w")
else_w = numpy_helper.from_array(np.full((2,), 3, np.float32), "else_w")


def move(location, *tensors):
    offset = 0
    with open(location, "wb") as f:
        for t in tensors:
            raw = t.raw_data
            f.write(raw)
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
            for k, v in (
                ("location", location),
                ("offset", offset),
                ("length", len(raw)),
            ):
                t.external_data.add(key=k, value=str(v))
            offset += len(raw)


move("subgraphs.data", w, then_w, else_w)


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

# rows = Rows(ids, flag): the rows of a table that ids name, twice as large if flag is set.
table = numpy_helper.from_array(
    np.repeat(np.arange(4096, dtype=np.float32), 2).reshape(4096, 2), "table"
)
twice = numpy_helper.from_array(np.full((2,), 2, np.float32), "twice")
once = numpy_helper.from_array(np.full((2,), 1, np.float32), "once")
move("functions.data", table, twice, once)
rows = helper.make_function(
    "local",
    "Rows",
    ["ids", "flag"],
    ["rows"],
    [
        helper.make_node("Constant", [], ["table"], value=table),
        helper.make_node("Gather", ["table", "ids"], ["looked_up"]),
        helper.make_node(
            "If",
            ["flag"],
            ["factor"],
            then_branch=branch(twice),
            else_branch=branch(once),
        ),
        helper.make_node("Mul", ["looked_up", "factor"], ["rows"]),
    ],
    [helper.make_opsetid("", 17)],
)
graph = helper.make_graph(
    [
        helper.make_node("ReduceMax", ["odd"], ["any"], keepdims=0),
        helper.make_node("Cast", ["any"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("Rows", ["ids", "flag"], ["rows"], domain="local"),
    ],
    "g",
    [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("odd", TensorProto.INT32, ["n"]),
    ],
    [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 2])],
)
model = helper.make_model(
    graph,
    producer_name="onnx-helper",
    opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    ir_version=8,
    functions=[rows],
)
onnx.save(model, "functions.onnx")
