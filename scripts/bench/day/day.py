#!/usr/bin/env python3
"""Holds a live fleet against the simulator: an hour of a load that rises and falls, compressed.

The same leader rents machines and places variants in both. Live, they are emulated agents as
processes on this machine, and all times of the day pass SPEED times as fast: the load's, calm
and boots. QoS targets and run times stay as they are, so that queries of a
compressed day wait as long as those of a whole one, and its changes come closer together. In the
simulator, one second of SPEED is simulated.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

SPEED = 6
STEPS = 10  # of an hour
WARM_UP = 10  # minutes of the day
KEPT_PRICE = 0.149  # $/hr of the r5n.large that leads; the simulator counts it, too
FAMILY = [("rm2", 1.0), ("dien", 0.98)]
FLEET = """fleet: day
mode: auto
limits:
  max_price_usd_per_hour: 3
  types: {{g4dn.xlarge: {{max: 3}}, r5n.large: {{max: 8}}}}
calm: {calm}s
process: {{dir: {machines}, models: {models}, boots: {boots}s}}
"""
PORTS = {"http": 18200, "grpc": 18201, "metrics": 18202, "gossip": 17846}
SERVER = f"127.0.0.1:{PORTS['grpc']}"


def factor(step):
    """Returns the load in a step of the hour, in parts of its mean."""
    return 1 - 5 / 7 * math.cos(2 * math.pi * (step % STEPS + 0.5) / STEPS)


def run(muster, *args):
    done = subprocess.run([muster, *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}: {done.stderr}")
    return done.stdout


def make_models(muster, folder):
    """Generates the family's variants, with the inputs of a small model."""
    for name in [name for name, _ in FAMILY] + ["ncf"]:
        out = folder / ("small" if name == "ncf" else "models")
        run(muster, "models", "generate", name, "--out", str(out), "--scale", "small")
    for name, accuracy in FAMILY:
        model = folder / "models" / name
        shutil.rmtree(model / "1")
        shutil.copytree(folder / "small" / "ncf" / "1", model / "1")
        config = model / "model.yaml"
        kept = config.read_text().split("inputs:")[0].splitlines()
        kept = [x for x in kept if not x.startswith(("qos_target_ms", "deadline_ms"))]
        kept += ["qos_target_ms: 350", "deadline_ms: 30000", "family: rank"]
        config.write_text("\n".join([*kept, f"accuracy: {accuracy}", ""]))


def policy(folder, speed):
    path = folder / f"fleet-{speed}.yaml"
    path.write_text(
        FLEET.format(
            calm=300 // speed,
            boots=60 // speed,
            machines=folder / "machines",
            models=folder / "models",
        )
    )
    return str(path)


def state_of(muster):
    """Returns what is rented; nothing where no agent answers."""
    done = subprocess.run(
        [muster, "fleet", "status", "--json", "--server", SERVER],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else {}


def watch_price(muster, stop, prices):
    while not stop.wait(2):
        if state := state_of(muster):
            prices.append(
                state.get("price_usd_per_hour", state.get("priceUsdPerHour", 0))
            )


def live(o, folder):
    """Runs the compressed hour with agents."""
    agent = subprocess.Popen(
        [o.muster, "agent", "--executor", "emulated", "--profile", "shipped"]
        + ["--instance-type", "r5n.large", "--model-dir", str(folder / "models")]
        + ["--state-dir", str(folder / "state"), "--rent", policy(folder, SPEED)]
        + [x for k, port in PORTS.items() for x in (f"--{k}", f"127.0.0.1:{port}")],
        stdout=(folder / "agent.log").open("w"),
        stderr=subprocess.STDOUT,
        env=os.environ | {"MUSTER_MODEL_CONTROL": "leader"},
    )
    prices, stop = [], threading.Event()
    watch = threading.Thread(target=watch_price, args=(o.muster, stop, prices))
    try:
        ready = [o.muster, "infer", "rank", "--batch-size", "1", "--server", SERVER]
        while subprocess.run(ready, capture_output=True, check=False).returncode != 0:
            time.sleep(0.5)
        counts = {"queries": 0, "late": 0, "failed": 0, "accuracy": 0.0}
        length = 3600 / SPEED / STEPS
        for step in range(-1, o.steps):
            duration = length if step >= 0 else 60 * WARM_UP / SPEED
            report = folder / "bench.json"
            run(
                o.muster,
                *["bench", "--model", "rank", "--rate", f"{o.rate * factor(step):.3f}"],
                *[
                    "--duration",
                    f"{duration:.0f}s",
                    "--seed",
                    str(o.seed * 100 + step + 1),
                ],
                *["--server", SERVER, "--json", str(report)],
            )
            if step < 0:
                watch.start()
                continue
            m = json.loads(report.read_text())["models"][0]
            for key in ("queries", "late", "failed"):
                counts[key] += m[key]
            counts["accuracy"] += m["effective_accuracy"] * m["answered"]
        answered = counts["queries"] - counts["failed"]
        return {
            "queries": counts["queries"],
            "in_time": 1 - (counts["late"] + counts["failed"]) / counts["queries"],
            "accuracy": counts["accuracy"] / answered,
            "dollars_per_hour": KEPT_PRICE + sum(prices) / max(1, len(prices)),
        }
    finally:
        stop.set()
        subprocess.run(
            [o.muster, "fleet", "destroy", "--yes", "--server", SERVER],
            capture_output=True,
            check=False,
        )
        # Machines that are left would join the next run, and tell it that all is to be returned.
        for _ in range(120):
            if not state_of(o.muster).get("machines"):
                break
            time.sleep(1)
        agent.terminate()
        agent.wait()


def simulated(o, folder):
    """Runs the hour in the simulator."""
    curve = folder / "hour.csv"
    rows = [
        f"{(i + e) / STEPS:.4f},{factor(i):.4f}"
        for i in range(24 * STEPS)
        for e in (0, 0.99)
    ]
    curve.write_text("\n".join(["hour,factor", *rows, ""]))
    variants = ",".join(f"{name}:{accuracy}" for name, accuracy in FAMILY)
    out = run(
        o.muster,
        *["sim", "day", "--fleet", policy(folder, 1), "--family", f"rank={variants}"],
        *["--rate", str(o.rate), "--curve", str(curve), "--keep", "r5n.large=1"],
        *[
            "--duration",
            f"{60 * o.steps // STEPS}m",
            "--warm-up",
            f"{WARM_UP}m",
            "--json",
        ],
        *["--speed", str(SPEED), "--seed", str(o.seed), "--qos-ms", "350"],
        *["--rtt-ms", "1", "--load-time", "1s"],
    )
    return json.loads(out)[0]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--muster", default="bin/muster")
    p.add_argument("--dir", default="build/day")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rate", type=float, default=40)
    p.add_argument("--steps", type=int, default=STEPS, help="tenths of the hour")
    o = p.parse_args()
    folder = pathlib.Path(o.dir).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "machines").mkdir(parents=True)
    make_models(o.muster, folder)
    day = simulated(o, folder)
    day = {
        "queries": day["queries"],
        "in_time": day["in_time"],
        "accuracy": day["accuracy"],
        "dollars_per_hour": day["dollars"] / day["hours"],
    }
    compressed = live(o, folder)
    for name, got in [("simulated", day), ("live", compressed)]:
        print(
            f"{name:9}  {got['queries']} queries, {100 * got['in_time']:.2f} % in time, "
            f"accuracy {got['accuracy']:.4f}, ${got['dollars_per_hour']:.3f}/hr"
        )


if __name__ == "__main__":
    main()
