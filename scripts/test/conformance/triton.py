"""Serves a Triton model repository with Muster, to Triton's clients.

It writes a repository of three models in a temporary folder: one with batches, one without, and an
ensemble. `muster agent` serves it as it is. The same program of tritonclient then prints the same
numbers as with ONNX Runtime in Python, whichever client it uses; every call that these clients have
works or says what is missing; and perf_analyzer, whose calls are taken from its source, would find
what it reads. Each check prints a line. The exit status is 1 if any failed.
"""

import argparse
import asyncio
import hashlib
import inspect
import json
import pathlib
import queue
import sys
import tempfile
import time
import urllib.request

import numpy as np
import onnxruntime
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from conformance import Checks, equal
from onnx import TensorProto, checker, helper, numpy_helper, save
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from agent import Agent

# ------------------------------------------------------------ the repository

# Small whole numbers, so that every order of adding them up gives the same floats.
WEIGHTS = np.array(
    [[1, 0, 2, 0], [0, 1, 0, -1], [3, 0, 1, 0], [0, 2, 0, 1]], np.float32
)

PLAIN = """
name: "plain"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
model_warmup [ { name: "one" batch_size: 1 inputs { key: "x" value {
  data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
"""

BATCHLESS = """
backend: "onnxruntime"
max_batch_size: 0
input [
  { name: "grid" data_type: TYPE_FP32 dims: [ 2, 3 ] },
  { name: "row" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ 2, 3 ] },
         { name: "words" data_type: TYPE_STRING dims: [ -1 ] } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""

ENSEMBLE = """
name: "ensemble"
platform: "ensemble"
max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "once" data_type: TYPE_FP32 dims: [ 4 ] },
         { name: "twice" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    { model_name: "plain" model_version: -1
      input_map { key: "x" value: "once" } output_map { key: "y" value: "twice" } },
    { model_name: "plain" model_version: -1
      input_map { key: "x" value: "in" } output_map { key: "y" value: "once" } }
  ]
}
"""


def write_repository(folder):
    def tensor(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, list(shape))

    def model(name, config, nodes, inputs, outputs, initializers=()):
        path = folder / name / "1"
        path.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if not nodes:
            return
        graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
        made = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        checker.check_model(made)
        save(made, str(path / "model.onnx"))

    real, text = TensorProto.FLOAT, TensorProto.STRING
    model(
        "plain",
        PLAIN,
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        [tensor("x", real, "N", 4)],
        [tensor("y", real, "N", 4)],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model(
        "batchless",
        BATCHLESS,
        [
            helper.make_node("ReduceSum", ["row"], ["total"], keepdims=1),
            helper.make_node("Add", ["grid", "total"], ["sum"]),
            helper.make_node("Cast", ["row"], ["words"], to=text),
        ],
        [tensor("grid", real, 2, 3), tensor("row", real, "K")],
        [tensor("sum", real, 2, 3), tensor("words", text, "K")],
    )
    model("ensemble", ENSEMBLE, [], [], [])
    (folder / "plain" / "labels.txt").write_text("nothing reads this\n")


def content(folder):
    """The names and contents of all files below a folder."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


# --------------------------------------------------------------- the program

QUERIES = [
    ("plain", {"x": np.arange(4 * n, dtype=np.float32).reshape(n, 4) - 3})
    for n in (1, 3, 8)
]
QUERIES += [
    (
        "batchless",
        {
            "grid": np.arange(6, dtype=np.float32).reshape(2, 3),
            "row": np.arange(n, dtype=np.float32),
        },
    )
    for n in (1, 5)
]
QUERIES += [
    ("ensemble", {"in": np.arange(4 * n, dtype=np.float32).reshape(n, 4) - 5})
    for n in (1, 4)
]
OUTPUTS = {"plain": ["y"], "batchless": ["sum", "words"], "ensemble": ["once", "twice"]}


def lines(answers):
    """What the program prints: answers has, for each query, a function from output to values."""
    text = []
    for (model, _), answer in zip(QUERIES, answers, strict=True):
        for name in OUTPUTS[model]:
            v = answer(name)
            assert v is not None, f"{model} has no output {name}"
            if v.dtype == object:
                v = np.array([w if isinstance(w, str) else w.decode() for w in v.flat])
            text.append(f"{model} {name} {list(v.shape)} {v.ravel().tolist()}")
    return "\n".join(text)


def with_onnxruntime(folder):
    sessions = {
        name: onnxruntime.InferenceSession(
            str(folder / name / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        for name in ("plain", "batchless")
    }

    def run(model, values):
        if model == "ensemble":
            once = run("plain", {"x": values["in"]})("y")
            return {"once": once, "twice": run("plain", {"x": once})("y")}.get
        names = [o.name for o in sessions[model].get_outputs()]
        return dict(zip(names, sessions[model].run(names, values), strict=True)).get

    return lines(run(*query) for query in QUERIES)


def inputs(module, values):
    tensors = []
    for name, v in values.items():
        t = module.InferInput(name, list(v.shape), np_to_triton_dtype(v.dtype))
        t.set_data_from_numpy(v)
        tensors.append(t)
    return tensors


def with_client(module, url):
    with module.InferenceServerClient(url) as c:
        return lines(
            c.infer(model, inputs(module, values)).as_numpy for model, values in QUERIES
        )


def with_callbacks(url):
    """Asynchronous queries over gRPC, each with a callback."""
    with tritonclient.grpc.InferenceServerClient(url) as c:
        answers = {}
        done = queue.Queue()
        for i, (model, values) in enumerate(QUERIES):
            c.async_infer(
                model,
                inputs(tritonclient.grpc, values),
                lambda result, error, i=i: done.put((i, result, error)),
            )
        for _ in QUERIES:
            i, result, error = done.get(timeout=30)
            assert error is None, error
            answers[i] = result
        return lines(answers[i].as_numpy for i in range(len(QUERIES)))


def with_stream(url):
    """One stream over gRPC; the answers come in the order of the queries."""
    with tritonclient.grpc.InferenceServerClient(url) as c:
        done = queue.Queue()
        c.start_stream(lambda result, error: done.put((result, error)))
        for i, (model, values) in enumerate(QUERIES):
            c.async_stream_infer(
                model,
                inputs(tritonclient.grpc, values),
                request_id=str(i),
                enable_empty_final_response=True,
            )
        answers = []
        for i in range(len(QUERIES)):
            result, error = done.get(timeout=30)
            assert error is None, error
            response = result.get_response()
            equal(response.id, str(i), "id of the next answer")
            assert response.parameters["triton_final_response"].bool_param
            answers.append(result)
        c.stop_stream()
        return lines(a.as_numpy for a in answers)


def with_asyncio(module, url):
    async def run():
        async with module.InferenceServerClient(url) as c:
            return [
                await c.infer(model, inputs(module, values))
                for model, values in QUERIES
            ]

    return lines(a.as_numpy for a in asyncio.run(run()))


def with_asyncio_stream(url):
    module = tritonclient.grpc.aio

    async def queries():
        for model, values in QUERIES:
            yield {"model_name": model, "inputs": inputs(module, values)}

    async def run():
        answers = []
        async with module.InferenceServerClient(url) as c:
            async for result, error in c.stream_infer(queries()):
                assert error is None, error
                answers.append(result)
        return answers

    return lines(a.as_numpy for a in asyncio.run(run()))


# ----------------------------------------------------------- the clients' calls

MEMORY = "memory"  # words of the sentences with which calls are refused
SURFACE = {
    "is_server_live": ((), None),
    "is_server_ready": ((), None),
    "is_model_ready": (("plain",), None),
    "get_server_metadata": ((), None),
    "get_model_metadata": (("ensemble", "1"), None),
    "get_model_config": (("ensemble", "1"), None),
    "get_inference_statistics": (("plain", "1"), None),
    "get_model_repository_index": ((), None),
    "unload_model": (("batchless",), None),
    "load_model": (("batchless",), None),
    "get_trace_settings": (("plain",), "--traces"),
    "update_trace_settings": (("plain", {"trace_level": ["OFF"]}), "--traces"),
    "get_log_settings": ((), "--log-level"),
    "update_log_settings": (({"log_verbose_level": 1},), "--log-level"),
    "get_system_shared_memory_status": ((), MEMORY),
    "register_system_shared_memory": (("r", "/r", 64), MEMORY),
    "unregister_system_shared_memory": (("r",), MEMORY),
    "get_cuda_shared_memory_status": ((), MEMORY),
    "register_cuda_shared_memory": (("r", b"aGFuZGxl", 0, 64), MEMORY),
    "unregister_cuda_shared_memory": ((), MEMORY),
}
# Checked with the program, or calls of the client alone.
ELSEWHERE = {
    "infer",
    "async_infer",
    "start_stream",
    "async_stream_infer",
    "stop_stream",
}
ELSEWHERE |= {"stream_infer", "close", "plugin", "register_plugin", "unregister_plugin"}
ELSEWHERE |= {"generate_request_body", "parse_response_body"}


def check_surface(module, url):
    """Every call of a client works, or is refused with the sentence that says why."""
    c = module.InferenceServerClient
    methods = {n for n, _ in inspect.getmembers(c, callable) if n[0] != "_"}
    equal(methods - ELSEWHERE, set(SURFACE), "calls of the client")

    def check(name, refused, outcome):
        if refused is None:
            assert not isinstance(outcome, Exception), f"{name}: {outcome}"
            assert outcome is not False, f"{name} answers no"
            return
        assert isinstance(outcome, InferenceServerException), f"{name} succeeded"
        assert refused in outcome.message(), f"{name}: {outcome.message()}"
        assert outcome.status() in ("501", "StatusCode.UNIMPLEMENTED"), outcome

    async def run():
        async with c(url) as client:
            for name, (arguments, refused) in SURFACE.items():
                try:
                    outcome = await getattr(client, name)(*arguments)
                except InferenceServerException as e:
                    outcome = e
                check(name, refused, outcome)

    if module.__name__.endswith("aio"):
        asyncio.run(run())
        return
    with c(url) as client:
        for name, (arguments, refused) in SURFACE.items():
            try:
                outcome = getattr(client, name)(*arguments)
            except InferenceServerException as e:
                outcome = e
            check(name, refused, outcome)


def check_sequence(module, url):
    with module.InferenceServerClient(url) as c:
        model, values = QUERIES[0]
        try:
            c.infer(model, inputs(module, values), sequence_id=7, sequence_start=True)
        except InferenceServerException as e:
            assert "sequence_id" in e.message(), e
            assert e.status() in ("400", "StatusCode.INVALID_ARGUMENT"), e
        else:
            raise AssertionError("a query of a sequence is answered")


# --------------------------------------------------------------- perf_analyzer


def grpc_json(message):
    """A message as perf_analyzer turns it into JSON: 64-bit integers become strings."""
    from google.protobuf import json_format

    return json.loads(
        json_format.MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
    )


def whole(v):
    """GetInt of perf_analyzer: a number, or a string that is one."""
    assert isinstance(v, (int, str)) and not isinstance(v, bool), f"{v!r} is no number"
    return int(v)


def check_perf_analyzer(ask, models):
    """Reads what model_parser.cc and inference_profiler.cc read. ask returns JSON by the kind of a
    question: server, metadata, config or stats, and a model."""
    assert "statistics" in ask("server", None)["extensions"]
    for model, (batch, scheduler) in models.items():
        metadata, config = ask("metadata", model), ask("config", model)
        equal(metadata["name"], model, "name")
        equal(whole(config["max_batch_size"]), batch, f"max_batch_size of {model}")
        kind = "none"
        if config.get("platform") == "ensemble":
            kind = "ensemble"
            for step in config["ensemble_scheduling"]["step"]:
                whole(step["model_version"])
                assert "sequence_batching" not in ask("config", step["model_name"])
                assert ask("stats", step["model_name"])["model_stats"]
        elif "sequence_batching" in config:
            kind = "sequence"
        elif "dynamic_batching" in config:
            kind = "dynamic"
        equal(kind, scheduler, f"scheduler of {model}")
        if "model_transaction_policy" in config:
            assert config["model_transaction_policy"]["decoupled"] is False
        if "response_cache" in config:
            assert config["response_cache"]["enable"] is False
        for role, plural in (("input", "inputs"), ("output", "outputs")):
            shapes = {p["name"]: p["shape"] for p in metadata[plural]}
            for p in config[role]:
                assert p["is_shape_tensor"] is False
                assert role == "output" or p["optional"] is False
                whole_shape = [whole(d) for d in shapes[p["name"]]]
                equal(
                    whole_shape[1:] if batch else whole_shape,
                    [whole(d) for d in p["dims"]],
                    f"dims of {p['name']}",
                )
        (stats,) = ask("stats", model)["model_stats"]
        equal((stats["name"], stats["version"]), (model, "1"), "statistics")
        for field in ("inference_count", "execution_count"):
            whole(stats[field])
        for field in ("success", "fail", "queue", "compute_input", "compute_infer"):
            for part in ("count", "ns"):
                whole(stats["inference_stats"][field][part])


def by_http(url):
    def get(path):
        with urllib.request.urlopen(f"http://{url}/v2{path}", timeout=30) as r:
            return json.load(r)

    ends = {"metadata": "", "config": "/config", "stats": "/stats"}
    return lambda kind, model: (
        get("") if kind == "server" else get(f"/models/{model}{ends[kind]}")
    )


def by_grpc(client):
    asks = {
        "metadata": client.get_model_metadata,
        "config": client.get_model_config,
        "stats": client.get_inference_statistics,
    }

    def ask(kind, model):
        if kind == "server":
            return grpc_json(client.get_server_metadata())
        answer = grpc_json(asks[kind](model))
        return answer["config"] if kind == "config" else answer

    return ask


# ----------------------------------------------------------------- the checks


def check_log(agent):
    text = "".join(agent.lines)
    for words in (
        "dynamic_batching.max_queue_delay_microseconds",
        "instance_group.count",
        "nothing reads the files labels.txt",
        r"parameters[\"intra_op_thread_count\"]",
    ):
        assert words in text or words.replace('\\"', r"\\\"") in text, (
            f"{words!r} is not in the log"
        )


def check_explicit(muster, work, want):
    """With --model-control explicit models load by calls alone, an ensemble with its models."""
    agent = Agent(muster, work, "--model-control", "explicit")
    try:
        with tritonclient.http.InferenceServerClient(agent.http) as c:
            for model in OUTPUTS:
                assert not c.is_model_ready(model), f"{model} is loaded without a call"
            c.load_model("ensemble")
            assert c.is_model_ready("ensemble"), "ensemble is not ready"
            c.load_model("batchless")
            c.load_model("plain")
            equal(with_client(tritonclient.grpc, agent.grpc), want, "numbers")
            c.unload_model("plain")
            assert not c.is_model_ready("plain"), "plain is ready after unloading"
            assert c.is_model_ready("ensemble"), (
                "the ensemble needs plain to stay loaded"
            )
    finally:
        equal(agent.stop(), 0, "exit status")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", type=pathlib.Path, required=True, help="the binary")
    args = parser.parse_args()
    start = time.monotonic()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="muster-triton-") as folder:
        work = pathlib.Path(folder)
        models = work / "models"
        write_repository(models)
        before = content(models)
        want = with_onnxruntime(models)
        print(want)
        agent = Agent(args.muster, work)
        try:
            run(checks, agent, want)
        finally:
            checks.run(
                "SIGTERM drains and exits with 0",
                lambda: equal(agent.stop(), 0, "exit status"),
            )
        checks.run("the log names what has no effect", check_log, agent)
        checks.run("explicit model control", check_explicit, args.muster, work, want)
        checks.run(
            "the repository is unchanged",
            lambda: equal(content(models), before, "files"),
        )
    took = time.monotonic() - start
    print(f"triton: {checks.passed} passed, {checks.failed} failed in {took:.0f} s")
    sys.exit(1 if checks.failed else 0)


def run(checks, agent, want):
    def program(name, call, *arguments):
        checks.run(
            f"{name} prints what ONNX Runtime prints",
            lambda: equal(call(*arguments), want, "what is printed"),
        )

    program("tritonclient.http", with_client, tritonclient.http, agent.http)
    program("tritonclient.grpc", with_client, tritonclient.grpc, agent.grpc)
    program("tritonclient.grpc with callbacks", with_callbacks, agent.grpc)
    program("tritonclient.grpc on a stream", with_stream, agent.grpc)
    program("tritonclient.http.aio", with_asyncio, tritonclient.http.aio, agent.http)
    program("tritonclient.grpc.aio", with_asyncio, tritonclient.grpc.aio, agent.grpc)
    program("tritonclient.grpc.aio on a stream", with_asyncio_stream, agent.grpc)
    for module, url in (
        (tritonclient.http, agent.http),
        (tritonclient.grpc, agent.grpc),
        (tritonclient.http.aio, agent.http),
        (tritonclient.grpc.aio, agent.grpc),
    ):
        checks.run(f"every call of {module.__name__}", check_surface, module, url)
    for module, url in (
        (tritonclient.http, agent.http),
        (tritonclient.grpc, agent.grpc),
    ):
        checks.run(f"{module.__name__}: sequence", check_sequence, module, url)
    schedulers = {
        "plain": (8, "dynamic"),
        "batchless": (0, "none"),
        "ensemble": (4, "ensemble"),
    }
    checks.run(
        "perf_analyzer -i http", check_perf_analyzer, by_http(agent.http), schedulers
    )
    with tritonclient.grpc.InferenceServerClient(agent.grpc) as c:
        checks.run("perf_analyzer -i grpc", check_perf_analyzer, by_grpc(c), schedulers)


if __name__ == "__main__":
    main()
