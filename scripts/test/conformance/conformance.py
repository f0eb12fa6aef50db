"""Checks with unmodified clients that an agent speaks the Open Inference Protocol.

It starts `muster agent` on free ports, with the models in WORK/models and two that it writes. Each
check prints a line. The last line counts them; the exit status is 1 if any failed.
"""

import argparse
import asyncio
import concurrent.futures
import http.client
import json
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import time
import traceback
import urllib.request

import grpc
import numpy as np
import onnx
import onnxruntime
import openapi_schema_validator
import openapi_spec_validator
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from agent import Agent

TOLERANCE = 1e-5  # relative, between ONNX Runtime in the agent and in Python


# ---------------------------------------------------------------- the models

# The types of the protocol that JSON can hold, with the ONNX name of each.
TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


def write_identity(directory):
    """A model that returns an input of every type, [N, 3], as it is."""
    nodes, inputs, outputs = [], [], []
    for name, kind in TYPES.items():
        nodes.append(helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]))
        inputs.append(helper.make_tensor_value_info(f"in_{name}", kind, ["N", 3]))
        outputs.append(helper.make_tensor_value_info(f"out_{name}", kind, ["N", 3]))
    write(directory, helper.make_graph(nodes, "identity", inputs, outputs))


def write_reciprocal(directory):
    """A model whose output is infinite where its input is 0."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])
    write(
        directory,
        helper.make_graph(
            [helper.make_node("Reciprocal", ["x"], ["y"])], "reciprocal", [x], [y]
        ),
    )


def write(directory, graph):
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.checker.check_model(model)
    directory.mkdir(parents=True)
    onnx.save(model, str(directory / "model.onnx"))


def identity_values(rows):
    """Values of every type that a careless codec would change."""
    rng = np.random.default_rng(3)
    values = {}
    for name in TYPES:
        dtype = np.dtype(triton_to_np_dtype(name))
        if name == "BOOL":
            v = rng.integers(0, 2, (rows, 3)).astype(bool)
        elif name == "BYTES":
            words = np.array(["", "a", 'q"\\\n', "é😀", "x" * 300], dtype=object)
            v = words[np.arange(rows * 3).reshape(rows, 3) % len(words)]
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            v = rng.integers(info.min, info.max, (rows, 3), dtype=dtype, endpoint=True)
            v.flat[:3] = [info.min, info.max, 1]
        else:
            v = rng.standard_normal((rows, 3)).astype(dtype)
            v.flat[:3] = [0.1, np.finfo(dtype).max, np.finfo(dtype).tiny]
        values[f"in_{name}"] = v
    return values


class Model:
    """A model of the repository and ONNX Runtime's view of it."""

    def __init__(self, path, name=None):
        self.name = name or path.parent.parent.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [
            (i.name, triton_type(i.type), i.shape) for i in self.session.get_inputs()
        ]
        self.outputs = [
            (o.name, triton_type(o.type), o.shape) for o in self.session.get_outputs()
        ]

        self.bounds = {}  # of its ids, by input
        self.largest = 0  # batch size; 0 while unknown

    def values(self, rows, seed=1):
        """Random inputs; integers stay below their bounds."""
        rng = np.random.default_rng(seed)
        values = {}
        for name, datatype, shape in self.inputs:
            shape = [rows] + shape[1:]
            dtype = np.dtype(triton_to_np_dtype(datatype))
            if dtype.kind in "iu":
                b = np.array(self.bounds.get(name, [100]))
                b = b.reshape([1, -1] + [1] * (len(shape) - 2)) if len(shape) > 1 else b
                values[name] = rng.integers(0, np.broadcast_to(b, shape), dtype=dtype)
            else:
                values[name] = rng.standard_normal(shape).astype(dtype)
        return values

    def run(self, values):
        names = [name for name, _, _ in self.outputs]
        return dict(zip(names, self.session.run(names, values)))


def triton_type(onnx_type):
    return {
        "tensor(float)": "FP32",
        "tensor(double)": "FP64",
        "tensor(float16)": "FP16",
        "tensor(int64)": "INT64",
        "tensor(int32)": "INT32",
        "tensor(string)": "BYTES",
    }.get(onnx_type, onnx_type[len("tensor(") : -1].upper())


# ----------------------------------------------------------------- the agent


# ---------------------------------------------------------------- the checks


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def run(self, name, f, *args):
        try:
            f(*args)
        except Exception as e:  # noqa: BLE001 - whatever it is, the check failed
            self.failed += 1
            where = traceback.extract_tb(e.__traceback__)[-1]
            print(
                f"FAIL {name}: {type(e).__name__}: {e} (line {where.lineno})",
                flush=True,
            )
        else:
            self.passed += 1
            print(f"ok   {name}", flush=True)


def same(got, want, what):
    assert got is not None, f"{what} is missing"
    assert got.dtype == want.dtype, f"{what} has type {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{what} has shape {got.shape}, want {want.shape}"
    if want.dtype.kind == "f":
        scale = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(
            got, want, rtol=TOLERANCE, atol=TOLERANCE * scale * 1e-2, err_msg=what
        )
    else:
        assert (got == want).all(), f"{what} is {got}, want {want}"


def equal(got, want, what):
    assert got == want, f"{what} is {got!r}, want {want!r}"


def fails(call, statuses, *words):
    """The call must fail with one of the statuses and say all the words."""
    try:
        call()
    except InferenceServerException as e:
        assert e.status() in statuses, (
            f"status {e.status()}, want {statuses}: {e.message()}"
        )
        for w in words:
            assert w in e.message(), f"{w!r} is not in: {e.message()}"
    else:
        raise AssertionError(f"succeeded, want one of {statuses}")


class Client:
    """tritonclient over HTTP or gRPC, whose calls differ a little."""

    def __init__(self, module, address, binary):
        self.module, self.binary = module, binary
        self.is_http = module is tritonclient.http
        if self.is_http:
            self.triton = module.InferenceServerClient(address, concurrency=4)
            self.name = "http binary" if binary else "http json"
        else:
            self.triton = module.InferenceServerClient(address)
            self.name = "grpc"

    def inputs(self, values, types=None):
        tensors = []
        for name, v in values.items():
            datatype = (types or {}).get(name) or np_to_triton(v)
            t = self.module.InferInput(name, list(v.shape), datatype)
            if self.is_http:
                t.set_data_from_numpy(v, binary_data=self.binary)
            else:
                t.set_data_from_numpy(v)
            tensors.append(t)
        return tensors

    def outputs(self, names):
        if self.is_http:
            return [
                self.module.InferRequestedOutput(n, binary_data=self.binary)
                for n in names
            ]
        return [self.module.InferRequestedOutput(n) for n in names]

    def infer(self, model, values, outputs=None, types=None, **more):
        if outputs is None and self.is_http and not self.binary:
            raise ValueError(
                "tritonclient asks for binary data where no output is named"
            )
        wanted = self.outputs(outputs) if outputs is not None else None
        return self.triton.infer(
            model, self.inputs(values, types), outputs=wanted, **more
        )

    # What REST and gRPC call the same things.
    invalid = property(lambda self: ("400", "StatusCode.INVALID_ARGUMENT"))
    not_found = property(lambda self: ("404", "StatusCode.NOT_FOUND"))
    not_serving = property(
        lambda self: ("404", "503", "StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
    )
    too_late = property(lambda self: ("504", "StatusCode.DEADLINE_EXCEEDED"))

    def index(self):
        index = self.triton.get_model_repository_index()
        return index if self.is_http else [plain(m) for m in index.models]

    def metadata(self, *args):
        return self.plain(self.triton.get_model_metadata(*args))

    def plain(self, answer):
        return answer if self.is_http else plain(answer)


def np_to_triton(v):
    return (
        "BYTES" if v.dtype == object else tritonclient.utils.np_to_triton_dtype(v.dtype)
    )


def plain(message):
    """A message as a dict of its fields, as REST has it."""
    out = {}
    for f in message.DESCRIPTOR.fields:
        v = getattr(message, f.name)
        if f.message_type and f.message_type.GetOptions().map_entry:
            v = dict(v)
        elif f.is_repeated:
            v = [plain(m) for m in v] if f.message_type else list(v)
        elif f.message_type:
            v = plain(v)
        out[f.name] = v
    return out


def id_bounds(properties):
    """The bounds on ids, by input."""
    prefix = "id_bounds."
    return {
        k[len(prefix) :]: [int(b) for b in v.split(",")]
        for k, v in properties.items()
        if k.startswith(prefix)
    }


def check_health(c):
    assert c.triton.is_server_live(), "not live"
    assert c.triton.is_server_ready(), "not ready"
    assert c.triton.is_model_ready("identity"), "identity is not ready"
    assert c.triton.is_model_ready("identity", "1"), "identity 1 is not ready"
    assert not c.triton.is_model_ready("missing"), (
        "a model that does not exist is ready"
    )
    assert not c.triton.is_model_ready("identity", "7"), (
        "a version that does not exist is ready"
    )


def check_server_metadata(c):
    m = c.plain(c.triton.get_server_metadata())
    equal(m["name"], "muster", "name")
    assert m["version"], "no version"
    for e in ("model_repository", "statistics", "binary_tensor_data"):
        assert e in m["extensions"], f"extension {e} is not in {m['extensions']}"


def check_metadata(c, model):
    m = c.metadata(model.name)
    equal(m["name"], model.name, "name")
    equal(m["versions"], ["1"], "versions")
    equal(m["platform"], "onnxruntime_onnx", "platform")
    for kind, ports in (("inputs", model.inputs), ("outputs", model.outputs)):
        got = [
            (t["name"], t["datatype"], [int(d) for d in t["shape"]]) for t in m[kind]
        ]
        want = [
            (n, t, [d if isinstance(d, int) else -1 for d in s]) for n, t, s in ports
        ]
        equal(got, want, kind)


def check_infer(c, model, rows):
    values = model.values(rows)
    want = model.run(values)
    got = c.infer(model.name, values, list(want), request_id=f"q{rows}")
    answer = c.plain(got.get_response())
    equal(answer["model_name"], model.name, "model_name")
    equal(answer["model_version"], "1", "model_version")
    equal(answer["id"], f"q{rows}", "id")
    for name, v in want.items():
        same(got.as_numpy(name), v, f"output {name}")


def check_identity(c, rows):
    values = identity_values(rows)
    if c.is_http and not c.binary:
        del values["in_FP16"]  # JSON has no form of it
        # All inputs have to be there: this one goes as binary data.
        half = c.module.InferInput("in_FP16", [rows, 3], "FP16")
        half.set_data_from_numpy(identity_values(rows)["in_FP16"], binary_data=True)
        wanted = c.outputs([n.replace("in_", "out_") for n in values])
        got = c.triton.infer("identity", [*c.inputs(values), half], outputs=wanted)
    else:
        got = c.infer("identity", values, [n.replace("in_", "out_") for n in values])
    for name, v in values.items():
        out = got.as_numpy(name.replace("in_", "out_"))
        if v.dtype == object:
            out = np.array(
                [s if isinstance(s, str) else s.decode() for s in out.flat],
                dtype=object,
            ).reshape(out.shape)
        same(out, v, name)


def check_outputs(c):
    values = identity_values(2)
    if c.is_http and not c.binary:
        return
    got = c.infer("identity", values)
    equal(
        len(c.plain(got.get_response())["outputs"]),
        len(TYPES),
        "number of outputs where none is named",
    )
    got = c.infer("identity", values, ["out_INT64", "out_FP32"])
    names = [o["name"] for o in c.plain(got.get_response())["outputs"]]
    equal(names, ["out_INT64", "out_FP32"], "outputs")
    assert got.as_numpy("out_FP64") is None, "an output that was not asked for"


def check_once(c, model):
    """An input with one row is that of all rows of the others."""
    once = model.values(3)
    first = model.inputs[0][0]
    once[first] = once[first][:1]
    want = model.run(dict(once, **{first: np.repeat(once[first], 3, axis=0)}))
    got = c.infer(model.name, once, list(want))
    for name, v in want.items():
        same(got.as_numpy(name), v, f"output {name}")


def check_version_and_timeout(c, model):
    values = model.values(3)
    want = model.run(values)
    got = c.infer(model.name, values, list(want), model_version="1", timeout=10_000_000)
    for name, v in want.items():
        same(got.as_numpy(name), v, f"output {name}")


def check_deadline(c, model):
    values = model.values(3)
    names = [n for n, _, _ in model.outputs]
    fails(lambda: c.infer(model.name, values, names, timeout=1), c.too_late)


def check_bad_input(c, model):
    """Each with the status of a client's mistake, and what was wrong."""
    values = model.values(2)
    names = [n for n, _, _ in model.outputs]
    first, datatype, _ = model.inputs[0]

    def infer(changed=None, outputs=names, name=model.name, types=None, **more):
        v = dict(values, **(changed or {}))
        return lambda: c.infer(
            name, {k: x for k, x in v.items() if x is not None}, outputs, types, **more
        )

    fails(infer(name="missing"), c.not_found, "missing")
    fails(infer(model_version="7"), c.not_found, "7")
    fails(infer(model_version="latest"), c.invalid, "latest")
    fails(infer(name="../models/" + model.name), (*c.invalid, *c.not_found))
    fails(infer({"nonsense": values[first]}), c.invalid, "nonsense")
    fails(infer({first: None}), c.invalid, first)
    fails(infer(outputs=["nonsense"]), c.invalid, "nonsense")
    other = np.float64 if datatype != "FP64" else np.float32
    fails(infer({first: values[first].astype(other)}), c.invalid, first, datatype)
    fails(infer({first: values[first][..., None]}), c.invalid, first)
    fails(infer({first: np.concatenate([values[first]] * 2, axis=1)}), c.invalid, first)
    if len(model.inputs) > 1:
        three = model.values(3)
        three[first] = three[first][:2]
        fails(lambda: c.infer(model.name, three, names), c.invalid, "batch")
    fails(infer({k: x[:0] for k, x in values.items()}), c.invalid, "batch")
    for name, b in model.bounds.items():
        for bad in (-1, b[0]):
            ids = values[name].copy()
            ids[1].flat[0] = bad
            fails(infer({name: ids}), c.invalid, name, str(bad), "[1 0")
    rows = model.largest + 1
    fails(
        lambda: c.infer(model.name, model.values(rows), names),
        c.invalid,
        str(rows),
        str(model.largest),
    )


def check_unsupported(c):
    values = identity_values(1)
    if c.is_http and not c.binary:
        return
    out = c.module.InferRequestedOutput("out_FP32", class_count=3)
    fails(
        lambda: c.triton.infer("identity", c.inputs(values), outputs=[out]),
        c.invalid,
        "classification",
    )
    tensors = c.inputs(values)
    tensors[0].set_shared_memory("region", 10)
    fails(
        lambda: c.triton.infer("identity", tensors), c.invalid, "shared_memory_region"
    )


def check_statistics(c, model):
    def numbers():
        s = c.plain(c.triton.get_inference_statistics(model.name))["model_stats"]
        equal([(m["name"], m["version"]) for m in s], [(model.name, "1")], "models")
        return s[0]

    before = numbers()
    names = [n for n, _, _ in model.outputs]
    for _ in range(3):
        c.infer(model.name, model.values(5), names)
    after = numbers()
    for field, want in (("inference_count", 15), ("execution_count", 3)):
        equal(int(after[field]) - int(before[field]), want, f"growth of {field}")
    grown = {}
    for field in ("success", "fail", "queue", "compute_infer"):
        a, b = after["inference_stats"][field], before["inference_stats"][field]
        grown[field] = int(a["count"]) - int(b["count"]), int(a["ns"]) - int(b["ns"])
    equal(grown["success"][0], 3, "growth of success.count")
    equal(grown["fail"][0], 0, "growth of fail.count")
    assert grown["success"][1] >= grown["compute_infer"][1] > 0, f"times are {grown}"
    assert abs(time.time() * 1000 - int(after["last_inference"])) < 60_000, (
        "last_inference is not now"
    )
    models = c.plain(c.triton.get_inference_statistics())["model_stats"]
    assert {"identity", model.name} <= {m["name"] for m in models}, (
        "statistics of all models lack some"
    )
    fails(lambda: c.triton.get_inference_statistics("missing"), c.not_found, "missing")


def check_repository(c, model):
    def state():
        return [m["state"] for m in c.index() if m["name"] == model.name]

    values, names = model.values(2), [n for n, _, _ in model.outputs]
    equal(state(), ["READY"], "state at first")
    c.triton.unload_model(model.name)
    assert state() != ["READY"], "READY after unloading"
    assert not c.triton.is_model_ready(model.name), "ready after unloading"
    fails(lambda: c.infer(model.name, values, names), c.not_serving, model.name)
    c.triton.load_model(model.name)
    equal(state(), ["READY"], "state after loading")
    assert c.triton.is_model_ready(model.name), "not ready after loading"
    for name, v in model.run(values).items():
        same(c.infer(model.name, values, names).as_numpy(name), v, f"output {name}")
    c.triton.load_model(model.name)  # again, which changes nothing
    equal(state(), ["READY"], "state after loading again")
    fails(lambda: c.triton.load_model("missing"), c.not_found, "missing")
    fails(lambda: c.triton.load_model("../secret"), (*c.invalid, *c.not_found))
    fails(lambda: c.triton.unload_model("missing"), c.not_found, "missing")


def check_new_model(c, work, name):
    """A model of the user's own, put there while serving, without any
    configuration."""
    write_reciprocal(work / "models" / name / "1")
    c.triton.load_model(name)
    x = np.array([[1, 2], [4, -8]], dtype=np.float32)
    same(c.infer(name, {"x": x}, ["y"]).as_numpy("y"), 1 / x, "y")
    broken = work / "models" / (name + "_broken") / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"this is no model")
    fails(
        lambda: c.triton.load_model(name + "_broken"),
        ("400", "StatusCode.FAILED_PRECONDITION"),
        "model.onnx",
    )
    reasons = [m["reason"] for m in c.index() if m["name"] == name + "_broken"]
    assert reasons and reasons[0], (
        f"the index gives no reason for a broken model: {reasons}"
    )
    same(c.infer(name, {"x": x}, ["y"]).as_numpy("y"), 1 / x, "y after a broken model")


def check_infinity(c):
    """Infinity and NaN, in a query and in an answer, in JSON too."""
    x = np.array([[0, 2], [-0.0, np.nan]], dtype=np.float32)
    same(
        c.infer("reciprocal", {"x": x}, ["y"]).as_numpy("y"),
        np.array([[np.inf, 0.5], [-np.inf, np.nan]], dtype=np.float32),
        "y",
    )


def check_concurrent(c, model):
    names = [n for n, _, _ in model.outputs]
    batches = [model.values(rows, seed=rows) for rows in range(1, 17)]
    wants = [model.run(v) for v in batches]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # tritonclient's HTTP client belongs to one thread; its gRPC one does not.
        answers = map if c.is_http else pool.map
        for want, got in zip(
            wants, answers(lambda v: c.infer(model.name, v, names), batches)
        ):
            for name, v in want.items():
                same(got.as_numpy(name), v, f"output {name}")


def check_async(c, model):
    names = [n for n, _, _ in model.outputs]
    values = model.values(4)
    want = model.run(values)
    if c.is_http:
        pending = [
            c.triton.async_infer(model.name, c.inputs(values), outputs=c.outputs(names))
            for _ in range(8)
        ]
        answers = [p.get_result() for p in pending]
    else:
        done = queue.Queue()
        for _ in range(8):
            c.triton.async_infer(
                model.name,
                c.inputs(values),
                lambda result, error: done.put((result, error)),
                outputs=c.outputs(names),
            )
        answers = []
        for _ in range(8):
            result, error = done.get(timeout=30)
            assert error is None, error
            answers.append(result)
    for a in answers:
        for name, v in want.items():
            same(a.as_numpy(name), v, f"output {name}")


def check_asyncio(agent, model):
    """tritonclient's other two clients."""

    async def infer(module, address):
        async with module.InferenceServerClient(address) as triton:
            assert await triton.is_server_ready(), "not ready"
            return await triton.infer(model.name, inputs)

    values = model.values(4)
    for module, address in (
        (tritonclient.http.aio, agent.http),
        (tritonclient.grpc.aio, agent.grpc),
    ):
        inputs = []
        for name, v in values.items():
            inputs.append(module.InferInput(name, list(v.shape), np_to_triton(v)))
            inputs[-1].set_data_from_numpy(v)
        got = asyncio.run(infer(module, address))
        for name, v in model.run(values).items():
            same(got.as_numpy(name), v, f"output {name} of {module.__name__}")


def check_compression(c, model):
    names = [n for n, _, _ in model.outputs]
    values = model.values(40)
    want = model.run(values)
    for algorithm in ("gzip", "deflate"):
        if c.is_http:
            more = {
                "request_compression_algorithm": algorithm,
                "response_compression_algorithm": algorithm,
            }
        elif algorithm == "gzip":
            more = {"compression_algorithm": algorithm}
        else:
            continue
        got = c.infer(model.name, values, names, **more)
        for name, v in want.items():
            same(got.as_numpy(name), v, f"output {name}, {algorithm}")


def check_client_timeout(c, model):
    """A client that gives up costs nothing but its own query."""
    names = [n for n, _, _ in model.outputs]
    values = model.values(1000)  # more than can be answered in no time
    # Cancelled, where the server has noticed before the client.
    fails(
        lambda: c.infer(model.name, values, names, client_timeout=1e-6),
        ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"),
    )
    c.infer(model.name, values, names)


# The field of InferTensorContents that holds each type.
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def typed_request(name, values):
    request = service_pb2.ModelInferRequest(model_name=name, id="typed")
    for key, v in values.items():
        t = request.inputs.add(name=key, datatype=np_to_triton(v), shape=v.shape)
        elements = (
            [s.encode() for s in v.flat] if v.dtype == object else v.flatten().tolist()
        )
        getattr(t.contents, CONTENTS[t.datatype]).extend(elements)
    return request


def raw_output(response, name):
    i = [o.name for o in response.outputs].index(name)
    o, raw = response.outputs[i], response.raw_output_contents[i]
    if o.datatype == "BYTES":
        return np.array(
            [b.decode() for b in deserialize_bytes_tensor(raw)], dtype=object
        ).reshape(o.shape)
    return np.frombuffer(raw, dtype=triton_to_np_dtype(o.datatype)).reshape(o.shape)


def check_typed(stub, model):
    values = model.values(7)
    response = stub.ModelInfer(typed_request(model.name, values))
    equal(response.id, "typed", "id")
    for name, v in model.run(values).items():
        same(raw_output(response, name), v, f"output {name}")


def check_typed_errors(stub):
    def refused(request, *words):
        try:
            stub.ModelInfer(request)
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.INVALID_ARGUMENT, (
                f"{e.code()}: {e.details()}"
            )
            for w in words:
                assert w in e.details(), f"{w!r} is not in: {e.details()}"
        else:
            raise AssertionError(f"taken, want an error with {words}")

    values = {"x": np.ones((2, 2), dtype=np.float32)}
    good = typed_request("reciprocal", values)
    assert len(stub.ModelInfer(good).raw_output_contents) == 1
    for change, words in (
        (
            lambda r: r.raw_input_contents.append(b"1234" * 4),
            ["x", "raw_input_contents"],
        ),
        (lambda r: r.inputs[0].contents.fp32_contents.append(1), ["x", "4", "[2 2]"]),
        (lambda r: r.inputs[0].contents.fp32_contents.pop(), ["x", "3", "4"]),
        (
            lambda r: r.inputs[0].contents.fp64_contents.append(1),
            ["x", "fp64_contents", "fp32_contents"],
        ),
        (lambda r: r.inputs[0].contents.Clear(), ["x"]),
        (lambda r: r.inputs.append(r.inputs[0]), ["x", "twice"]),
        (lambda r: r.inputs[0].shape.__setitem__(0, -2), ["x", "negative"]),
        (
            lambda r: r.inputs[0].shape.__setitem__(0, 1 << 62),
            ["x", "4611686018427387904"],
        ),
        (lambda r: setattr(r.inputs[0], "datatype", "FLOAT"), ["x", "FLOAT"]),
    ):
        bad = service_pb2.ModelInferRequest()
        bad.CopyFrom(good)
        change(bad)
        refused(bad, *words)


def check_typed_identity(stub):
    values = {k: v for k, v in identity_values(5).items() if k != "in_FP16"}
    half = np.zeros((5, 3), dtype=np.float16)
    # FP16 travels raw only, and raw and typed may not be mixed.
    request = typed_request("identity", values)
    request.inputs.add(name="in_FP16", datatype="FP16", shape=[5, 3])
    try:
        stub.ModelInfer(request)
    except grpc.RpcError as e:
        assert (
            e.code() == grpc.StatusCode.INVALID_ARGUMENT and "in_FP16" in e.details()
        ), e
    else:
        raise AssertionError("FP16 without contents was taken")
    raw = service_pb2.ModelInferRequest(model_name="identity")
    for key, v in dict(values, in_FP16=half).items():
        raw.inputs.add(name=key, datatype=np_to_triton(v), shape=v.shape)
        raw.raw_input_contents.append(
            serialize_byte_tensor(v).item() if v.dtype == object else v.tobytes()
        )
    response = stub.ModelInfer(raw)
    for key, v in values.items():
        same(raw_output(response, key.replace("in_", "out_")), v, key)


def check_typed_each(stub, work):
    """Typed contents of each type, on a model of one input."""
    for name in CONTENTS:
        model = f"identity_{name.lower()}"
        kind = TYPES[name]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            model,
            [helper.make_tensor_value_info("x", kind, ["N", 3])],
            [helper.make_tensor_value_info("y", kind, ["N", 3])],
        )
        write(work / "models" / model / "1", graph)
        stub.RepositoryModelLoad(
            service_pb2.RepositoryModelLoadRequest(model_name=model)
        )
        v = identity_values(5)[f"in_{name}"]
        response = stub.ModelInfer(typed_request(model, {"x": v}))
        same(raw_output(response, "y"), v, name)


def check_descriptors(channel):
    """Names and numbers of the live server's messages are those of the
    tritonclient's."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    ours = pool.FindServiceByName("inference.GRPCInferenceService")
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    own = {("ModelMetadataResponse", "properties")}  # fields beyond tritonclient's
    seen = set()

    def compare(a, b):
        if a.full_name in seen:
            return
        seen.add(a.full_name)
        equal(a.full_name, b.full_name, "message")
        for field in a.fields:
            if (a.name, field.name) in own:
                assert field.number not in b.fields_by_number, (
                    f"{field.full_name} takes the number of another"
                )
                continue
            other = b.fields_by_number.get(field.number)
            assert other is not None, (
                f"{field.full_name} = {field.number} is not in tritonclient"
            )
            for what in ("name", "type", "is_repeated"):
                equal(
                    getattr(field, what),
                    getattr(other, what),
                    f"{what} of {field.full_name}",
                )
            equal(
                field.containing_oneof and field.containing_oneof.name,
                other.containing_oneof and other.containing_oneof.name,
                f"oneof of {field.full_name}",
            )
            if field.type == FieldDescriptorProto.TYPE_MESSAGE:
                compare(field.message_type, other.message_type)
        missing = {f.name for f in b.fields} - {f.name for f in a.fields}
        assert not missing, f"{a.full_name} lacks {missing}"

    methods = {m.name for m in ours.methods}
    want = "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer RepositoryIndex"
    want += " RepositoryModelLoad RepositoryModelUnload ModelStatistics"
    assert set(want.split()) <= methods, f"methods are {methods}"
    for method in ours.methods:
        other = theirs.methods_by_name[method.name]
        for a, b in (
            (method.input_type, other.input_type),
            (method.output_type, other.output_type),
        ):
            compare(a, b)
            # What one writes the other can read.
            message_factory.GetMessageClass(a)().ParseFromString(
                b._concrete_class().SerializeToString()
            )
    assert len(seen) > 30, f"only {len(seen)} messages compared"


# ------------------------------------------------------------ other clients


def output(*command, stdin=None):
    done = subprocess.run(
        command, check=False, input=stdin, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def curl(url, *more):
    """Status and body."""
    code, out, err = output("curl", "-sS", "-w", "\n%{http_code}", *more, url)
    equal(code, 0, f"exit status of curl ({err.strip()})")
    body, _, status = out.rpartition("\n")
    return int(status), body


def check_curl(agent):
    url = f"http://{agent.http}"
    for path in (
        "/livez",
        "/readyz",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/reciprocal/ready",
    ):
        equal(curl(url + path)[0], 200, path)
    status, body = curl(url + "/v2")
    equal((status, json.loads(body)["name"]), (200, "muster"), "/v2")
    for path in ("/v2/models/reciprocal", "/v2/models/reciprocal/versions/1"):
        equal(
            json.loads(curl(url + path)[1])["inputs"],
            [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
            path,
        )
    query = {
        "id": "7",
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [2, 2],
                "data": [[1, 2], [4, -8]],
            }
        ],
    }
    for path in (
        "/v2/models/reciprocal/infer",
        "/v2/models/reciprocal/versions/1/infer",
    ):
        status, body = curl(url + path, "-d", json.dumps(query))
        equal(status, 200, body)
        want = {
            "model_name": "reciprocal",
            "model_version": "1",
            "id": "7",
            "outputs": [
                {
                    "name": "y",
                    "datatype": "FP32",
                    "shape": [2, 2],
                    "data": [1, 0.5, 0.25, -0.125],
                }
            ],
        }
        equal(json.loads(body), want, path)
    status, body = curl(url + "/v2/models/reciprocal/stats")
    equal(json.loads(body)["model_stats"][0]["name"], "reciprocal", "stats")
    status, body = curl(url + "/v2/repository/index", "-X", "POST")
    assert "reciprocal" in [m["name"] for m in json.loads(body)], body
    status, body = curl(url + "/v2/repository/index", "-d", '{"ready": true}')
    equal({m["state"] for m in json.loads(body)}, {"READY"}, "states of the ready")


def check_openapi(agent, model):
    """The OpenAPI document is valid, and each answer has the form that it gives."""
    url = f"http://{agent.http}"
    document = json.loads(curl(url + "/v2/openapi.json")[1])
    openapi_spec_validator.validate(document)

    def check(schema, value, what):
        whole = {**schema, "components": document["components"]}
        errors = list(openapi_schema_validator.OAS30Validator(whole).iter_errors(value))
        assert not errors, f"{what}: {errors[0].message} at {list(errors[0].path)}"

    def content(part):
        return part["content"]["application/json"]["schema"]

    query = {
        "id": "7",
        "parameters": {"timeout": 60_000_000},
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
    }
    bodies = {
        "infer": query,
        "index": {"ready": True},
        "load": {"parameters": {"agent": "all"}},
    }
    for name, version in (("reciprocal", "1"), (model.name, "1"), ("none", "9")):
        for path, item in document["paths"].items():
            for method in {"get", "post"} & item.keys():
                operation = item[method]
                if name != "reciprocal" and path.endswith(("/infer", "load", "unload")):
                    continue
                if path.endswith("unload"):  # other checks need the model
                    continue
                last = path.rsplit("/", 1)[-1]
                args = ["-X", method.upper()]
                if last in bodies:
                    check(
                        content(operation["requestBody"]),
                        bodies[last],
                        f"body of {path}",
                    )
                    args += ["-d", json.dumps(bodies[last])]
                where = path.replace("{model}", name).replace("{version}", version)
                status, body = curl(url + where, *args)
                wanted = 404 if name == "none" and "{model}" in path else 200
                equal(status, wanted, f"status of {where}: {body[:200]}")
                answers = operation["responses"]
                answer = answers[str(status)]
                if "$ref" in answer:
                    answer = document["components"]["responses"][
                        answer["$ref"].rsplit("/", 1)[-1]
                    ]
                if "content" in answer:
                    check(content(answer), json.loads(body), where)
                else:
                    equal(body, "", f"body of {where}")


def check_raw_tensor(agent):
    """Triton's raw binary request: the body is the input, and nothing else."""
    x = np.array([[1, 2], [4, 8], [5, 10]], np.float32)
    request = urllib.request.Request(
        f"http://{agent.http}/v2/models/reciprocal/infer",
        data=x.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
    )
    with urllib.request.urlopen(request) as answer:
        length, body = (
            int(answer.headers["Inference-Header-Content-Length"]),
            answer.read(),
        )
    output = json.loads(body[:length])["outputs"][0]
    equal(output["shape"], [3, 2], "shape")
    got = np.frombuffer(body[length:], np.float32).reshape(3, 2)
    same(got, 1 / x, "y")


def check_kserve(agent):
    """KServe's own client, in a process of its own: its messages have the names of Triton's."""
    program = pathlib.Path(__file__).with_name("kserve_client.py")
    code, out, err = output(sys.executable, str(program), agent.http, agent.grpc)
    equal(code, 0, f"exit status ({out}{err})")


def check_generated_client(agent):
    """A client that is generated of the OpenAPI document."""
    program = pathlib.Path(__file__).with_name("openapi_client.py")
    code, out, err = output(sys.executable, str(program), agent.http)
    equal(code, 0, f"exit status ({out}{err})")


def check_curl_errors(agent):
    url = f"http://{agent.http}"
    infer = url + "/v2/models/reciprocal/infer"
    x = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],%s}]}'
    binary = x % '"parameters":{"binary_data_size":8}'
    header = "Inference-Header-Content-Length: "
    for want, words, *args in (
        (404, "", url + "/v2/nonsense"),
        (405, "", url + "/v2/models/reciprocal/infer"),
        (404, "missing", url + "/v2/models/missing"),
        (404, "missing", url + "/v2/models/missing/infer", "-d", binary),
        (400, "object", infer, "-d", ""),
        (400, "byte 0", infer, "-d", "hello"),
        (400, "end of the text", infer, "-d", binary[:40]),
        (400, "nested", infer, "-d", x % ('"data":' + "[" * 100_000)),
        (400, "1e39", infer, "-d", x % '"data":[1,1e39]'),
        (400, "binary_data_size", infer, "-d", binary),
        (400, "Header", infer, "-d", binary + "12345678", "-H", header + "999999"),
        (
            400,
            "Header",
            infer,
            "-d",
            binary + "12345678",
            "-H",
            header + "99999999999999999999999",
        ),
        (400, "Header", infer, "-d", binary + "12345678", "-H", header + "-5"),
        (400, "body", infer, "-d", binary + "1234567", "-H", f"{header}{len(binary)}"),
        (
            400,
            "body",
            infer,
            "-d",
            binary + "123456789",
            "-H",
            f"{header}{len(binary)}",
        ),
        (
            400,
            "body",
            infer,
            "-d",
            binary + "1234567",
            "-H",
            f"{header}{len(binary)}",
            "-H",
            "Transfer-Encoding: chunked",
        ),
    ):
        status, body = curl(*args)
        equal(status, want, f"status of {' '.join(args[1:])[:100]}: {body}")
        message = json.loads(body)["error"]
        assert message and words in message, f"{words!r} is not in: {message}"
    status, _ = curl(infer, "-d", x % '"data":[1,2]')
    equal(status, 200, "status of a good query afterwards")


def check_too_large(agent):
    """A body over the limit is refused by its length, before it is sent."""
    c = http.client.HTTPConnection(agent.http, timeout=30)
    c.putrequest("POST", "/v2/models/reciprocal/infer")
    c.putheader("Content-Length", str(1 << 40))
    c.endheaders()
    r = c.getresponse()
    equal(r.status, 413, "status")
    assert json.loads(r.read())["error"], "no error"
    c.close()


def check_half_closed(agent):
    """A client that stops in the middle of a body gets an answer, if it still
    listens, and costs nothing else."""
    host, port = agent.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as s:
        s.sendall(
            b"POST /v2/models/reciprocal/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        s.shutdown(socket.SHUT_WR)
        answer = b""
        while part := s.recv(4096):
            answer += part
    assert not answer or re.match(rb"HTTP/1.1 400 ", answer), answer
    equal(curl(f"http://{agent.http}/livez")[0], 200, "/livez afterwards")


def check_grpcurl(agent, grpcurl):
    def call(*args, stdin=None):
        code, out, err = output(grpcurl, "-plaintext", *args, stdin=stdin)
        equal(code, 0, f"exit status of grpcurl {' '.join(args)}: {err}")
        return out

    services = call(agent.grpc, "list").split()
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(
        services
    ), services
    described = call(agent.grpc, "describe", "inference.ModelInferRequest")
    assert "repeated bytes raw_input_contents = 7;" in described, described
    equal(
        json.loads(call(agent.grpc, "grpc.health.v1.Health/Check")),
        {"status": "SERVING"},
        "health",
    )
    service = "inference.GRPCInferenceService/"
    equal(
        json.loads(call(agent.grpc, service + "ServerLive")),
        {"live": True},
        "ServerLive",
    )
    query = {
        "model_name": "reciprocal",
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 2],
                "contents": {"fp32_contents": [1, 2]},
            }
        ],
    }
    answer = json.loads(
        call("-d", "@", agent.grpc, service + "ModelInfer", stdin=json.dumps(query))
    )
    equal(
        answer["outputs"],
        [{"name": "y", "datatype": "FP32", "shape": ["1", "2"]}],
        "outputs",
    )
    equal(answer["rawOutputContents"], ["AACAPwAAAD8="], "rawOutputContents")
    query["model_name"] = "missing"
    code, _, err = output(
        grpcurl,
        "-plaintext",
        "-d",
        json.dumps(query),
        agent.grpc,
        service + "ModelInfer",
    )
    assert code != 0 and "NotFound" in err, f"exit status {code}: {err}"


def check_metrics(agent):
    status, body = curl(f"http://{agent.metrics}/metrics")
    equal(status, 200, "status")
    assert re.search(
        r'^muster_\w+_bucket\{.*model="reciprocal".*le="', body, re.MULTILINE
    ), "no histogram of reciprocal"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument(
        "--work",
        type=pathlib.Path,
        required=True,
        help="directory with the models, in models/",
    )
    parser.add_argument("--grpcurl", required=True, help="the grpcurl binary")
    args = parser.parse_args()
    models = args.work / "models"
    write_identity(models / "identity" / "1")
    write_reciprocal(models / "reciprocal" / "1")
    zoo = [
        Model(p)
        for p in sorted(models.glob("*/1/model.onnx"))
        if p.parent.parent.name != "identity"
    ]
    start = time.monotonic()
    agent = Agent(args.muster, args.work)
    checks = Checks()
    try:
        run(checks, agent, zoo, args)
    finally:
        checks.run(
            "SIGTERM drains and exits with 0",
            lambda: equal(agent.stop(), 0, "exit status"),
        )
        if checks.failed:
            (args.work / "agent.log").write_text("".join(agent.lines))
            print(f"the agent's log is in {args.work / 'agent.log'}")
        print(
            f"{checks.passed} passed, {checks.failed} failed in {time.monotonic() - start:.0f} s"
        )
    sys.exit(1 if checks.failed else 0)


def run(checks, agent, zoo, args):
    channel = grpc.insecure_channel(agent.grpc)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    clients = [
        Client(tritonclient.http, agent.http, binary=False),
        Client(tritonclient.http, agent.http, binary=True),
        Client(tritonclient.grpc, agent.grpc, binary=True),
    ]
    checks.run("descriptors equal tritonclient's", check_descriptors, channel)
    for m in zoo:
        # What an agent's metadata says beyond the protocol; tritonclient
        # shows it in REST's only.
        properties = clients[0].metadata(m.name)["properties"]
        m.bounds, m.largest = (
            id_bounds(properties),
            int(properties["largest_batch_size"]),
        )
    bounded = next((m for m in zoo if m.bounds and len(m.inputs) > 1), zoo[0])

    for c in clients[1:]:
        kind = "http" if c.is_http else "grpc"
        checks.run(f"{kind}: health", check_health, c)
        checks.run(f"{kind}: server metadata", check_server_metadata, c)
        for m in zoo:
            checks.run(f"{kind}: metadata of {m.name}", check_metadata, c, m)
    for c in clients:
        for m in zoo:
            for rows in (1, 7, 300):
                checks.run(
                    f"{c.name}: {m.name}, batch size {rows}", check_infer, c, m, rows
                )
        checks.run(f"{c.name}: every data type", check_identity, c, 5)
        checks.run(f"{c.name}: outputs", check_outputs, c)
        checks.run(f"{c.name}: infinity", check_infinity, c)
        checks.run(
            f"{c.name}: version and timeout", check_version_and_timeout, c, bounded
        )
        checks.run(f"{c.name}: deadline", check_deadline, c, bounded)
        checks.run(f"{c.name}: concurrent queries", check_concurrent, c, bounded)
        checks.run(f"{c.name}: asynchronous queries", check_async, c, bounded)
        checks.run(f"{c.name}: compression", check_compression, c, bounded)
        for m in zoo:
            checks.run(f"{c.name}: bad input for {m.name}", check_bad_input, c, m)
            if len(m.inputs) > 1:
                checks.run(f"{c.name}: one row for all of {m.name}", check_once, c, m)
        checks.run(f"{c.name}: what is not supported", check_unsupported, c)
    checks.run("asyncio clients", check_asyncio, agent, bounded)
    for m in zoo:
        checks.run(f"grpc typed: {m.name}", check_typed, stub, m)
    checks.run("grpc typed: errors", check_typed_errors, stub)
    checks.run("grpc typed: raw and typed are not mixed", check_typed_identity, stub)
    checks.run("grpc typed: every data type", check_typed_each, stub, args.work)
    checks.run("grpc: client timeout", check_client_timeout, clients[2], bounded)
    for c in clients[1:]:
        kind = "http" if c.is_http else "grpc"
        checks.run(f"{kind}: statistics", check_statistics, c, bounded)
        checks.run(f"{kind}: unload and load", check_repository, c, bounded)
        checks.run(
            f"{kind}: a new model, and a broken one",
            check_new_model,
            c,
            args.work,
            f"own_{kind}",
        )
    checks.run("curl", check_curl, agent)
    checks.run("curl: bad requests", check_curl_errors, agent)
    checks.run("raw binary request", check_raw_tensor, agent)
    checks.run("KServe's client", check_kserve, agent)
    checks.run("OpenAPI: a generated client", check_generated_client, agent)
    checks.run("OpenAPI document", check_openapi, agent, bounded)
    checks.run("body over the limit", check_too_large, agent)
    checks.run("half-closed connection", check_half_closed, agent)
    checks.run(
        "grpcurl, by reflection", check_grpcurl, agent, os.path.abspath(args.grpcurl)
    )
    checks.run("metrics", check_metrics, agent)
    for c in clients:
        c.triton.close()
    channel.close()


if __name__ == "__main__":
    main()
