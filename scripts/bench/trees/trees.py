"""Compares trees in Muster with ONNX Runtime called directly, and with the trees' own libraries.

    $(scripts/venv.sh corpus)/python scripts/bench/trees/trees.py --muster bin/muster

It trains models of the size that people serve (500 trees, 40 features), exports them as their
exporters do by default, and serves them with an agent. For batches of 1, 64 and 1,000 rows each
round times, one after the other: the library's own predict; ONNX Runtime in Python, asked for the
tensors alone, without the maps that exporters add; a run in the agent, by the time that its
statistics say; and the whole query by tritonclient. All have as many threads. Medians of the
rounds are printed as a table. --export DIR only writes the models, without the maps, as a
repository for `MUSTER_BENCH_MODELS=DIR go test ./runtime -bench Executor`, which compares within
one process.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request

import catboost
import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import tritonclient.grpc
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn import ensemble

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "test/conformance"))
from agent import Agent

FEATURES, ROWS, TREES = 40, 20_000, 500
BATCHES = 1, 64, 1000


def data():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    score = x[:, 0] - x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) + random.normal(size=ROWS)
    return x, score.astype(np.float32), (score > 0).astype(np.int64)


def train(threads):
    """Yields a name, the model as its exporter writes it, and the library's own predict."""
    x, score, clicked = data()
    types = [("input", FloatTensorType([None, FEATURES]))]
    quick = {"n_estimators": TREES, "n_jobs": threads}
    classifier = lightgbm.LGBMClassifier(verbose=-1, **quick).fit(x, clicked)
    yield (
        "LightGBM classifier",
        onnxmltools.convert_lightgbm(classifier, initial_types=types),
        lambda rows: classifier.booster_.predict(rows, num_threads=threads),
    )
    groups = np.repeat(100, ROWS // 100)
    levels = np.digitize(score, [-1, 0, 1])
    ranker = lightgbm.LGBMRanker(verbose=-1, **quick).fit(x, levels, group=groups)
    yield (
        "LightGBM lambdarank",
        onnxmltools.convert_lightgbm(ranker.booster_, initial_types=types),
        lambda rows: ranker.booster_.predict(rows, num_threads=threads),
    )
    boosted = xgboost.XGBClassifier(max_depth=6, **quick).fit(x, clicked)
    yield (
        "XGBoost classifier",
        onnxmltools.convert_xgboost(boosted, initial_types=types),
        lambda rows: boosted.get_booster().inplace_predict(rows),
    )
    cat = catboost.CatBoostClassifier(
        iterations=TREES,
        depth=6,
        verbose=False,
        thread_count=threads,
        allow_writing_files=False,
    ).fit(x, clicked)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        cat.save_model(str(path), format="onnx")
        model = onnx.load(path)
    yield (
        "CatBoost classifier",
        model,
        lambda rows: cat.predict_proba(rows, thread_count=threads),
    )
    forest = ensemble.RandomForestClassifier(
        100, max_depth=12, n_jobs=threads, random_state=1
    )
    forest.fit(x, clicked)
    yield "scikit-learn forest (100)", to_onnx(forest, x[:1]), forest.predict_proba
    smooth = ensemble.HistGradientBoostingRegressor(
        max_iter=TREES, early_stopping=False
    )
    smooth.fit(x, score)
    yield "scikit-learn HistGradientBoosting", to_onnx(smooth, x[:1]), smooth.predict


def without_maps(model):
    """The model whose outputs are what its ZipMap reads, if it has one."""
    plain = onnx.ModelProto.FromString(model.SerializeToString())
    for node in [n for n in plain.graph.node if n.op_type == "ZipMap"]:
        for output in plain.graph.output:
            if output.name == node.output[0]:
                output.CopyFrom(
                    onnx.helper.make_tensor_value_info(
                        node.input[0], onnx.TensorProto.FLOAT, [None, None]
                    )
                )
        plain.graph.node.remove(node)
    return plain


class Served:
    def __init__(self, name, model, agent, triton, threads):
        self.name, self.agent, self.triton = name, agent, triton
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            without_maps(model).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        self.input = self.session.get_inputs()[0].name

    def run_alone(self, x):
        self.session.run(None, {self.input: x})

    def ask(self, x):
        tensor = tritonclient.grpc.InferInput(self.input, x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        self.triton.infer(self.name, [tensor])

    def run_seconds(self):
        """How long all runs of the model have taken in the agent."""
        with urllib.request.urlopen(
            f"http://{self.agent.http}/v2/models/{self.name}/stats"
        ) as answer:
            stats = json.load(answer)["model_stats"][0]
        return stats["inference_stats"]["compute_infer"]["ns"] / 1e9


def timed(repeat, f, x):
    """Mean seconds of a call. Threads that wait for work by spinning have stopped before."""
    time.sleep(0.2)
    f(x)
    start = time.perf_counter()
    for _ in range(repeat):
        f(x)
    return (time.perf_counter() - start) / repeat


def compare(served, predict, rounds):
    """Medians in seconds by batch: of the library, ONNX Runtime, the agent's run, the query."""
    x, _, _ = data()
    for rows in BATCHES:
        batch = x[:rows]
        repeat = max(1, 200 // rows)
        found = []
        for _ in range(rounds):
            own = timed(repeat, predict, batch)
            alone = timed(repeat, served.run_alone, batch)
            before = served.run_seconds()
            query = timed(repeat, served.ask, batch)
            runs = (served.run_seconds() - before) / (repeat + 1)
            found.append((own, alone, runs, query))
        yield rows, [statistics.median(column) for column in zip(*found, strict=True)]


def save(model, repository, title):
    """Writes the model as version 1 of the repository, and returns its name there."""
    name = title.split("(")[0].strip().replace(" ", "-").lower()
    to = repository / name / "1"
    to.mkdir(parents=True)
    onnx.save(model, to / "model.onnx")
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--muster", type=pathlib.Path)
    what.add_argument("--export", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    models = list(train(arguments.threads))
    if arguments.export:
        for name, model, _ in models:
            save(without_maps(model), arguments.export, name)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        names = {name: save(model, work / "models", name) for name, model, _ in models}
        agent = Agent(arguments.muster, work, "--cores", str(arguments.threads))
        try:
            triton = tritonclient.grpc.InferenceServerClient(agent.grpc)
            print(
                "| model | rows | own library ms | ONNX Runtime ms | run in Muster ms "
                "| / ONNX Runtime | ONNX Runtime / own | query ms |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- | --- |")
            for name, model, predict in models:
                served = Served(names[name], model, agent, triton, arguments.threads)
                for rows, (own, alone, run, query) in compare(
                    served, predict, arguments.rounds
                ):
                    print(
                        f"| {name} | {rows} | {1e3 * own:.3f} | {1e3 * alone:.3f} | "
                        f"{1e3 * run:.3f} | {run / alone:.2f} | {alone / own:.2f} | "
                        f"{1e3 * query:.3f} |",
                        flush=True,
                    )
        finally:
            agent.stop()


if __name__ == "__main__":
    main()
