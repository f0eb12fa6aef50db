"""How ONNX Runtime's settings for waiting threads change a run, with all cores.

Arguments: seconds, and files MODEL-BATCH.bin as of loop.py. In turns, 20 runs at a time, each setting
runs each case again and again without a pause, and with a pause of 2 ms between runs, as a server
has between queries. Prints tables: a run's time in us (tenth percentile, median, 99th) and the CPU
time that it takes, beside those without spinning.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

import models

PAUSES = [0, 0.002]
SPIN = "session.intra_op."


def settings():
    yield "no spinning", {}
    yield "no spinning, blocks of 4", {"session.dynamic_block_base": "4"}
    yield "spinning, ONNX Runtime's default", {SPIN + "allow_spinning": "1"}
    yield (
        "default, stops after a run",
        {
            SPIN + "allow_spinning": "1",
            "session.force_spinning_stop": "1",
        },
    )
    for backoff in ["1", "8"]:
        for us in ["20", "50", "100", "300", "1000"]:
            yield (
                f"spinning {us} us, backoff {backoff}",
                {
                    SPIN + "allow_spinning": "1",
                    SPIN + "spin_duration_us": us,
                    SPIN + "spin_backoff_max": backoff,
                },
            )


def make(path, entries):
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["THREADS"])
    for key, value in {SPIN + "allow_spinning": "0", **entries}.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def measure(session, feed, pause):
    """Returns the times of runs, and the CPU time of one, both in us."""
    times, before = [], time.process_time()
    for _ in range(20):
        start = time.perf_counter()
        session.run(None, feed)
        times.append((time.perf_counter() - start) * 1e6)
        if pause:
            time.sleep(pause)
    return times, (time.process_time() - before) * 1e6 / 20


def main():
    seconds, repository = float(sys.argv[1]), Path(os.environ["REPOSITORY"])
    for file in map(Path, sys.argv[2:]):
        body = file.read_bytes()
        path = repository / body[:8].rstrip(b"\0").decode() / "1" / "model.onnx"
        feed = models.Model(path).feed(body, 8)
        sessions = [(name, make(path, entries)) for name, entries in settings()]
        results = {(name, pause): ([], []) for name, _ in sessions for pause in PAUSES}
        for session in sessions:
            measure(session[1], feed, 0)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, session in sessions:
                for pause in PAUSES:
                    times, cpu = measure(session, feed, pause)
                    results[name, pause][0].extend(times)
                    results[name, pause][1].append(cpu)
        print(
            f"\n{file.stem}: us of a run (p10, p50, p99), its CPU time; / those without spinning"
        )
        print("\n| | at once | with pauses of 2 ms |\n| --- | --- | --- |")
        base = {}
        for name, _ in sessions:
            cells = []
            for pause in PAUSES:
                times, cpu = results[name, pause]
                figures = [*np.percentile(times, [10, 50, 99]), np.median(cpu)]
                first = base.setdefault(pause, figures)
                shares = " ".join(
                    f"{a / b:.2f}" for a, b in zip(figures, first, strict=True)
                )
                cells.append(" ".join(f"{x:.0f}" for x in figures) + f"; {shares}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


main()
