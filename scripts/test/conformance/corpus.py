"""Serves the models of corpus_models.py and compares the answers with ONNX Runtime's in Python.

Each model is asked by tritonclient: alone, with batches of several sizes, and by eight clients at a
time, whose queries Muster may merge. The last lines are a table by exporter. The exit status is 1
if a model is not served as it should be: one that ONNX Runtime loads is served, any other refused
with a reason. With --page FILE the table replaces the one in that page.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import sys
import tempfile
import urllib.error
import urllib.request

import numpy as np
import onnx
import onnxruntime
import tritonclient.grpc
from corpus_models import all_models
from tritonclient.utils import np_to_triton_dtype

from agent import Agent

LARGEST = 128  # rows of a query
TOGETHER = [
    1,
    2,
    3,
    5,
    8,
    13,
    21,
    34,
]  # rows of the queries of clients that ask at once

# How far an answer may be from ONNX Runtime's in Python, as a share of the output's largest value.
# Sums in another order differ by as much.
TOLERANCE = {
    np.dtype(np.float16): 5e-3,
    np.dtype(np.float32): 1e-5,
    np.dtype(np.float64): 1e-5,
}


class Wrong(Exception):
    """A model is not served as it should be."""


def rows_as_tensor(maps):
    """A sequence of maps, one a row, as a tensor of their values."""
    return np.array([list(row.values()) for row in maps])


def compare(name, got, want, rows):
    if isinstance(want, list):
        if not want or not isinstance(want[0], dict):
            return  # a sequence of tensors, which Muster leaves out
        want = rows_as_tensor(want)
    if got is None:
        raise Wrong(f"output {name} is missing")
    if want.dtype.kind in "OUS":
        texts = np.array([t.decode() for t in got.ravel()], dtype=object).reshape(
            got.shape
        )
        if (texts != want.astype(object)).any():
            raise Wrong(f"output {name} of {rows} rows is {texts}, want {want}")
        return
    if want.ndim == 0 and got.shape == (1,):
        want = want.reshape(1)
    if got.shape != want.shape:
        raise Wrong(
            f"output {name} of {rows} rows has shape {got.shape}, want {want.shape}"
        )
    if want.dtype.kind != "f":
        if (got != want).any():
            raise Wrong(f"output {name} of {rows} rows is {got}, want {want}")
        return
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=0)
    if not np.allclose(
        got, want, rtol=0, atol=TOLERANCE[want.dtype] * scale, equal_nan=True
    ):
        off = np.abs(got - want)[finite].max(initial=0)
        raise Wrong(f"output {name} of {rows} rows is off by {off:.3g} of {scale:.3g}")


class Served:
    """A model beside ONNX Runtime in Python."""

    def __init__(self, model, agent, triton):
        self.model, self.agent, self.triton = model, agent, triton
        self.session, self.batched = None, False

    def find_runtime_fault(self):
        """Why ONNX Runtime in Python does not load the model; None: it does."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self.session = onnxruntime.InferenceSession(
                self.model.model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as e:  # noqa: BLE001 - whatever ONNX Runtime raises
            return f"ONNX Runtime does not load it: {shorten(e)}"
        return None

    def why_refused(self):
        """The reason for which the agent does not serve the model; None: it serves it."""
        request = urllib.request.Request(
            f"http://{self.agent.http}/v2/repository/index", data=b"{}", method="POST"
        )
        with urllib.request.urlopen(request) as answer:
            for one in json.load(answer):
                if one["name"] == self.model.name and one.get("state") == "READY":
                    return None
                if one["name"] == self.model.name:
                    return one.get("reason") or one.get("state")
        return "it is not in the index"

    def ask(self, feeds):
        inputs = []
        for name, value in feeds.items():
            tensor = tritonclient.grpc.InferInput(
                name, value.shape, np_to_triton_dtype(value.dtype)
            )
            tensor.set_data_from_numpy(value)
            inputs.append(tensor)
        return self.triton.infer(self.model.name, inputs, client_timeout=60)

    def check(self, feeds, want, rows):
        answer = self.ask(feeds)
        for name, value in want.items():
            compare(name, answer.as_numpy(name), value, rows)

    def examine(self):
        outputs = [o.name for o in self.session.get_outputs()]

        def want(feeds):
            return dict(zip(outputs, self.session.run(None, feeds), strict=True))

        queries = self.model.examples
        if self.model.inputs:
            queries = [self.model.inputs(rows) for rows in (3, 1, 64, LARGEST)]
        if not queries:
            return "no query is known for it"
        for feeds in queries:
            try:
                expected = want(feeds)
            except Exception as e:  # noqa: BLE001
                return f"ONNX Runtime does not run it: {shorten(e)}"
            rows = max((len(v) for v in feeds.values() if v.ndim), default=0)
            self.check(feeds, expected, rows)
        if self.model.inputs:
            self.batched = True
            self.ask_together(want)
        return None

    def ask_together(self, want):
        """Clients that ask at the same time get what they get alone."""
        asked = [self.model.inputs(rows) for rows in TOGETHER * 4]
        expected = [want(feeds) for feeds in asked]
        with concurrent.futures.ThreadPoolExecutor(len(TOGETHER)) as pool:
            done = [
                pool.submit(self.check, feeds, one, rows)
                for feeds, one, rows in zip(asked, expected, TOGETHER * 4, strict=True)
            ]
            for one in done:
                one.result()


def shorten(e):
    return re.sub(r"\s+", " ", str(e))[:160]


class Table:
    """How many models of each exporter are served."""

    def __init__(self):
        self.rows = collections.defaultdict(collections.Counter)

    def __str__(self):
        lines = [
            "| exporter | models | served | with batches | refused | ONNX Runtime fails |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        columns = ["models", "served", "batched", "refused", "not run"]
        for exporter, count in self.rows.items():
            lines.append(
                f"| {exporter} | " + " | ".join(str(count[c]) for c in columns) + " |"
            )
        return "\n".join(lines)


def write_page(path, table):
    text = path.read_text()
    begin, end = "<!-- corpus: made by make corpus -->", "<!-- /corpus -->"
    head, rest = text.split(begin)
    path.write_text(f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--muster", type=pathlib.Path, required=True)
    parser.add_argument(
        "--page", type=pathlib.Path, help="the page whose table is rewritten"
    )
    parser.add_argument("--only", default="", help="models whose name has these words")
    arguments = parser.parse_args()
    models = [m for m in all_models() if arguments.only in m.name]
    table, failed = Table(), 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for m in models:
            to = work / "models" / m.name / "1"
            to.mkdir(parents=True)
            onnx.save(m.model, to / "model.onnx")
        agent = Agent(arguments.muster, work)
        try:
            triton = tritonclient.grpc.InferenceServerClient(agent.grpc)
            for m in models:
                failed += not examine(Served(m, agent, triton), table)
        finally:
            status = agent.stop()
    if status != 0:
        print(
            f"FAIL the agent ended with status {status}:\n{''.join(agent.lines[-20:])}"
        )
        failed += 1
    print(f"\n{table}\n\n{len(models)} models, {failed} not as they should be")
    if arguments.page and not arguments.only:
        write_page(arguments.page, table)
    sys.exit(failed > 0)


def examine(served, table):
    """Examines a model, counts it, and reports whether it is served as it should be."""
    name = served.model.name
    count = table.rows[served.model.exporter]
    count["models"] += 1
    reason = served.why_refused()
    try:
        not_run = served.find_runtime_fault()
        if not_run is None and reason is None:
            not_run = served.examine()
    except Exception as e:  # noqa: BLE001 - whatever it is, the model is not served as it should be
        count["wrong"] += 1
        print(f"FAIL {name}: {type(e).__name__}: {shorten(e)}", flush=True)
        return False
    if not_run:
        count["not run"] += 1
        print(f"left out {name}: {not_run}", flush=True)
        return True
    if reason is not None:
        count["refused"] += 1
        print(f"FAIL {name}: not served: {reason}", flush=True)
        return False
    count["served"] += 1
    count["batched"] += served.batched
    return True


if __name__ == "__main__":
    main()
