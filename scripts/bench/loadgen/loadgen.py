"""Drives agents and fleets with MLPerf's LoadGen, and prints only what LoadGen calls VALID.

    PY=$(scripts/venv.sh loadgen)/python
    $PY scripts/bench/loadgen/loadgen.py --muster bin/muster --model ncf --target-ms 5
    $PY scripts/bench/loadgen/loadgen.py --muster bin/muster --model ncf --target-ms 5 \\
        --pool g4dn.xlarge=1,r5n.large=13 --balancer muster --balancer round-robin

A query is a sample of LoadGen: as many candidates as MLPerf's ranking benchmark draws for one, with
random features. Without --pool one agent runs the model with ONNX Runtime, and so does this process
by itself (--balancer onnxruntime). With --pool the agents are emulated: each waits as long as the
published profile of its instance type says and computes nothing. --balancer says who chooses the
agent: muster, or this process by round-robin, least-connections or power-of-two, over agents that do
not know each other.

In LoadGen's scenario Server queries arrive as a Poisson process; the program searches the highest
rate at which LoadGen's own summary says VALID, with early stopping, by halving. In Offline all come
at once. A query that is refused or fails counts as answered late, at twice the target, since LoadGen
knows no failures; their number is printed.
"""

import argparse
import array
import heapq
import json
import pathlib
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import mlperf_loadgen as lg
import numpy as np
import onnx
import onnxruntime
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "test/conformance"))
from agent import Agent

SAMPLES = 1024
# Candidates of a query in MLPerf's DLRM-v2 (its dist_quantile.txt has 20 quantiles).
CANDIDATES = [100] * 2 + [200] * 12 + [300] * 2 + [400, 500, 600, 700]
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Sample:
    """A query: its features, and the message that asks for it."""

    def __init__(self, model, inputs, random_numbers):
        rows = int(random_numbers.choice(CANDIDATES))
        self.features = {}
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, (element, shape, ids) in inputs.items():
            shape = [rows, *shape]
            if element == "INT64":
                value = random_numbers.integers(0, ids, shape, np.int64)
            else:
                value = random_numbers.random(shape, np.float32)
            self.features[name] = value
            request.inputs.add(name=name, datatype=element, shape=shape)
            request.raw_input_contents.append(value.tobytes())
        self.message = request.SerializeToString()


def inputs_of(path):
    """The inputs of a generated model: name -> element type, shape of a row, number of ids."""
    inputs = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim][1:]
        element = {onnx.TensorProto.INT64: "INT64", onnx.TensorProto.FLOAT: "FP32"}[
            tensor.elem_type
        ]
        inputs[value.name] = element, shape, 100  # no table is smaller
    return inputs


class LateAnswers:
    """Completes queries that failed at a later time."""

    def __init__(self):
        self.waiting, self.changed = [], threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def add(self, at, complete):
        with self.changed:
            heapq.heappush(self.waiting, (at, id(complete), complete))
            self.changed.notify()

    def run(self):
        while True:
            with self.changed:
                while not self.waiting or self.waiting[0][0] > time.monotonic():
                    self.changed.wait(
                        self.waiting[0][0] - time.monotonic() if self.waiting else None
                    )
                _, _, complete = heapq.heappop(self.waiting)
            complete()


def complete(sample):
    answer = array.array("B", b"\0")
    lg.QuerySamplesComplete(
        [lg.QuerySampleResponse(sample.id, answer.buffer_info()[0], 1)]
    )


class Agents:
    """Sends queries to agents by gRPC, to the one that the balancer names."""

    def __init__(self, addresses, balancer, target_ms):
        self.calls = [
            grpc.insecure_channel(a).unary_unary(INFER, None, None) for a in addresses
        ]
        self.open = [0] * len(self.calls)
        self.balancer, self.next, self.failed = balancer, 0, 0
        self.lock, self.late = threading.Lock(), LateAnswers()
        self.after = 2 * target_ms / 1e3

    def choose(self):
        everyone = range(len(self.calls))
        if self.balancer == "least-connections":
            fewest = min(self.open)
            return random.choice([i for i in everyone if self.open[i] == fewest])
        if self.balancer == "power-of-two" and len(self.calls) > 1:
            return min(random.sample(everyone, 2), key=lambda i: self.open[i])
        self.next += 1
        return self.next % len(self.calls)

    def send(self, sample, query):
        arrival = time.monotonic()
        with self.lock:
            to = self.choose()
            self.open[to] += 1

        def done(call):
            failed = call.code() is not grpc.StatusCode.OK
            with self.lock:
                self.open[to] -= 1
                self.failed += failed
            if failed:
                self.late.add(arrival + self.after, lambda: complete(query))
            else:
                complete(query)

        self.calls[to].future(sample.message).add_done_callback(done)


class Runtime:
    """Runs queries with ONNX Runtime in this process, one after the other with all its threads."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(
            path, providers=["CPUExecutionProvider"]
        )
        self.waiting, self.failed = queue.SimpleQueue(), 0
        threading.Thread(target=self.run, daemon=True).start()

    def send(self, sample, query):
        self.waiting.put((sample, query))

    def run(self):
        while True:
            sample, query = self.waiting.get()
            self.session.run(None, sample.features)
            complete(query)


def run_loadgen(system, samples, options, rate, folder):
    """Runs LoadGen once. Returns its summary as a dictionary, and how many queries failed."""
    folder.mkdir(parents=True)
    system.failed = 0

    def issue(queries):
        for q in queries:
            system.send(samples[q.index], q)

    settings = lg.TestSettings()
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = int(1e3 * options.seconds)
    if options.scenario == "server":
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = rate
        settings.server_target_latency_ns = int(1e6 * options.target_ms)
        settings.server_target_latency_percentile = 0.99
    else:
        settings.scenario = lg.TestScenario.Offline
        settings.offline_expected_qps = rate
    log = lg.LogSettings()
    log.log_output.outdir = str(folder)
    sut = lg.ConstructSUT(issue, lambda: None)
    qsl = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, qsl, settings, log)
    lg.DestroyQSL(qsl)
    lg.DestroySUT(sut)
    summary = {}
    for line in (folder / "mlperf_log_summary.txt").read_text().splitlines():
        key, colon, value = line.partition(":")
        if colon:
            summary[key.strip()] = value.strip()
    return summary, system.failed


def search(system, samples, options, folder):
    """Prints each run, and returns the highest rate that is VALID, or 0."""
    low, high, rate = 0.0, None, options.rate
    for i in range(options.runs):
        summary, failed = run_loadgen(
            system, samples, options, rate, folder / f"{i}-{rate:.0f}"
        )
        valid = summary["Result is"] == "VALID"
        if options.scenario == "offline":
            got = float(summary["Samples per second"])
            print(
                f"  Offline: {got:.1f} queries/s, {summary['Result is']}, {failed} failed"
            )
            return got if valid else 0
        p99 = float(summary["99.00 percentile latency (ns)"]) / 1e6
        print(
            f"  Server at {rate:.1f} queries/s: {summary['Result is']}, p99 {p99:.2f} ms, "
            f"{failed} failed or refused",
            flush=True,
        )
        low, high = (rate, high) if valid else (low, rate)
        rate = 2 * low if high is None else (low + high) / 2
        if high is not None and high - low < options.precision * high:
            break
    return low


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--muster", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="ncf")
    parser.add_argument("--target-ms", type=float, required=True, help="p99 of Server")
    parser.add_argument("--pool", help="TYPE=COUNT,... of emulated agents")
    parser.add_argument(
        "--balancer", action="append", help="may be given several times"
    )
    parser.add_argument("--scenario", choices=["server", "offline"], default="server")
    parser.add_argument("--rate", type=float, default=100, help="first queries/s tried")
    parser.add_argument(
        "--runs", type=int, default=12, help="at most so many for a search"
    )
    parser.add_argument("--precision", type=float, default=0.03)
    parser.add_argument(
        "--seconds", type=float, default=60, help="LoadGen's least duration"
    )
    options = parser.parse_args()
    balancers = options.balancer or (
        ["muster", "round-robin", "least-connections", "power-of-two"]
        if options.pool
        else ["muster", "onnxruntime"]
    )
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        subprocess.run(
            [
                options.muster,
                "models",
                "generate",
                options.model,
                "--out",
                work / "models",
            ],
            check=True,
            capture_output=True,
        )
        path = work / "models" / options.model / "1" / "model.onnx"
        numbers, inputs = np.random.default_rng(1), inputs_of(path)
        samples = [Sample(options.model, inputs, numbers) for _ in range(SAMPLES)]
        for balancer in balancers:
            print(
                f"{options.model}, {options.pool or 'one agent'}, {balancer}:",
                flush=True,
            )
            run_balancer(balancer, samples, path, options, work)


def run_balancer(balancer, samples, path, options, work):
    to = work / balancer
    agents = []
    try:
        if balancer == "onnxruntime":
            system = Runtime(str(path))
        else:
            agents = start(balancer, options, work, to)
            addresses = [a.grpc for a in agents]
            system = Agents(
                addresses[:1] if balancer == "muster" else addresses,
                balancer,
                options.target_ms,
            )
        best = search(system, samples, options, to / "loadgen")
    finally:
        for a in agents:
            a.stop()
    print(f"  highest VALID: {best:.1f} queries/s", flush=True)


def start(balancer, options, work, to):
    """Starts the agents of the pool, or one that runs the model."""
    to.mkdir()
    (to / "models").symlink_to(work / "models")
    if not options.pool:
        return [Agent(options.muster, to)]
    agents = []
    for part in options.pool.split(","):
        kind, count = part.split("=")
        for _ in range(int(count)):
            home = to / f"{kind}-{len(agents)}"
            home.mkdir()
            (home / "models").symlink_to(work / "models")
            more = [
                "--executor",
                "emulated",
                "--profile",
                "shipped",
                "--instance-type",
                kind,
            ]
            if balancer == "muster" and agents:
                more += ["--join", agents[0].gossip]
            agents.append(Agent(options.muster, home, *more))
    if balancer == "muster":
        await_fleet(options.muster, agents)
    return agents


def await_fleet(muster, agents):
    """Waits until all agents know each other and one leads."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        out = subprocess.run(
            [muster, "status", "--json", "--server", agents[0].grpc],
            capture_output=True,
            text=True,
            check=False,
        )
        if out.returncode == 0:
            view = json.loads(out.stdout)["view"]
            if view.get("leadership", {}).get("leader") and len(view["members"]) == len(
                agents
            ):
                return
        time.sleep(0.5)
    sys.exit("the agents did not become one fleet")


if __name__ == "__main__":
    main()
