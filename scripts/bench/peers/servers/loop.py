"""ONNX Runtime alone: runs each case again and again, and prints its times.

Arguments: seconds a case, and files MODEL-BATCH.bin with queries as models.py wants them. Prints a
line of JSON for each: its runs' times in us.
"""

import json
import sys
import time
from pathlib import Path

import models


def main():
    seconds, loaded = float(sys.argv[1]), models.load()
    for file in map(Path, sys.argv[2:]):
        body = file.read_bytes()
        model = loaded[body[:8].rstrip(b"\0").decode()]
        feed, times = model.feed(body, 8), []
        now = time.perf_counter()
        warm, end = now + seconds / 5, now + seconds * 6 / 5
        while now < end or len(times) < 20:
            model.run(feed)
            before, now = now, time.perf_counter()
            if now > warm:
                times.append((now - before) * 1e6)
        print(
            json.dumps({"case": file.stem, "us": [round(t, 1) for t in times]}),
            flush=True,
        )


main()
