"""ONNX Runtime's CUDA provider as most people use it, for scripts/bench/gpu.

Each line of the input is a file with a query (see scripts/bench/peers/servers/models.py), a number
of threads and seconds. The answer is a line of JSON: the times of one thread's runs in us, and
queries/s of all threads.
"""

import json
import sys
import threading
import time
from pathlib import Path

import models


def measure(model, feed, seconds, times):
    now = time.perf_counter()
    end = now + seconds
    while now < end or not times:
        model.run(feed)
        before, now = now, time.perf_counter()
        times.append((now - before) * 1e6)


def main():
    loaded = models.load()
    for line in sys.stdin:
        file, threads, seconds = line.split()
        body = Path(file).read_bytes()
        model = loaded[body[:8].rstrip(b"\0").decode()]
        feed = model.feed(body, 8)
        all_times = [[] for _ in range(int(threads))]
        runners = [
            threading.Thread(target=measure, args=(model, feed, float(seconds), times))
            for times in all_times
        ]
        for _ in range(5):
            model.run(feed)
        start = time.perf_counter()
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        took = time.perf_counter() - start
        answer = {"us": all_times[0], "qps": sum(map(len, all_times)) / took}
        print(json.dumps(answer), flush=True)


main()
