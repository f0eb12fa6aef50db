"""Starts `muster agent` for the checks in this folder."""

import json
import queue
import signal
import subprocess
import sys
import threading
import time

START_TIMEOUT = 60  # seconds until the agent must be ready


class Agent:
    """A running `muster agent`."""

    def __init__(self, muster, work, *more):
        self.lines = []
        arguments = [
            "--model-dir",
            str(work / "models"),
            "--state-dir",
            str(work / "state"),
        ]
        arguments += [
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
            "--gossip",
            "127.0.0.1:0",
        ]
        arguments += ["--log-format", "json", *more]
        self.process = subprocess.Popen(
            [str(muster), "agent", *arguments], stderr=subprocess.PIPE, text=True
        )
        messages = queue.Queue()
        self.reader = threading.Thread(target=self.read, args=(messages,), daemon=True)
        self.reader.start()
        end = time.monotonic() + START_TIMEOUT
        while True:
            try:
                record = messages.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                record = None
            if record is None:
                self.process.kill()
                sys.exit("the agent did not become ready:\n" + "".join(self.lines))
            if "advertised_addr" in record:
                self.gossip = record["addr"]
            if record.get("event") == "started":
                self.http, self.grpc, self.metrics = (
                    record[k] for k in ("http", "grpc", "metrics")
                )
            if record.get("event") == "ready":
                return

    def read(self, messages):
        for line in self.process.stderr:
            self.lines.append(line)
            try:
                messages.put(json.loads(line))
            except ValueError:
                pass
        messages.put(None)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.reader.join()
        return status
