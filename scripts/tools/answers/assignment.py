#!/usr/bin/env python3
"""Solves assignment problems with SciPy and writes the answers that leader/internal/assign is
tested against.

It writes leader/internal/assign/testdata/answers.csv, a line for each problem: seed,
kind, rows, columns, and the least total cost or "infeasible". The matrices are made again
from the seeds. Element k (row-major, from 0) of a matrix comes from splitmix64: the output
function of state seed + (k + 1) * 0x9e3779b97f4a7c15, x, of which u = (x >> 11) / 2^53 is in [0, 1).
Kinds:
  uniform   u
  ties      floor(4 u)
  integers  floor(1000 u)
  constant  7
  product   (i + 1) (j + 1)
  sparse    u, forbidden where x mod 2048 < 1024
  columns   columns that repeat, as lanes of one type do: a[j mod 4] + b[j mod 4] * u, with the u of
            the row's first element, a = 0.7 0.2 0.5 0.1, b = 1 3 4 8

With --bench it times SciPy on the matrices of scripts/bench/assignment.sh instead.
Needs SciPy and NumPy: requirements-assignment.txt.
"""

import argparse
import math
import time

import numpy as np
from scipy.optimize import linear_sum_assignment

KINDS = ["uniform", "ties", "integers", "constant", "product", "sparse", "columns"]


def matrix(seed, kind, rows, columns):
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(
            1, rows * columns + 1, dtype=np.uint64
        ) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = (x ^ (x >> np.uint64(31))).reshape(rows, columns)
    u = (x >> np.uint64(11)).astype(np.float64) / 2.0**53
    i, j = np.indices((rows, columns))
    if kind == "uniform":
        return u
    if kind == "ties":
        return np.floor(4 * u)
    if kind == "integers":
        return np.floor(1000 * u)
    if kind == "constant":
        return np.full((rows, columns), 7.0)
    if kind == "product":
        return (i + 1.0) * (j + 1.0)
    if kind == "sparse":
        return np.where(x % np.uint64(2048) < 1024, math.inf, u)
    if kind == "columns":
        a, b = np.array([0.7, 0.2, 0.5, 0.1]), np.array([1.0, 3.0, 4.0, 8.0])
        return a[j % 4] + b[j % 4] * u[:, :1]
    raise ValueError(kind)


def problems():
    rng = np.random.default_rng(1)
    for n in range(3000):
        yield (
            n,
            KINDS[n % len(KINDS)],
            int(rng.integers(1, 13)),
            int(rng.integers(1, 13)),
        )
    for n in range(3000, 3210):
        yield (
            n,
            KINDS[n % len(KINDS)],
            int(rng.integers(13, 81)),
            int(rng.integers(13, 81)),
        )
    for n, (rows, columns) in enumerate(
        [(200, 200), (300, 150), (150, 300), (20, 1000), (1000, 20)]
    ):
        for k, kind in enumerate(KINDS):
            yield 4000 + 10 * n + k, kind, rows, columns
    for k, kind in enumerate(["uniform", "ties", "sparse", "columns"]):
        yield 5000 + k, kind, 600, 600
    yield 5010, "uniform", 1000, 1000


def answers(path):
    with open(path, "w") as f:
        f.write("seed,kind,rows,columns,cost\n")
        for seed, kind, rows, columns in problems():
            cost = matrix(seed, kind, rows, columns)
            try:
                answer = repr(float(cost[linear_sum_assignment(cost)].sum()))
            except ValueError:
                answer = "infeasible"
            f.write(f"{seed},{kind},{rows},{columns},{answer}\n")


def bench(sizes, seconds):
    for size in sizes:
        rows, columns = map(int, size.split("x"))
        cost = matrix(rows, "uniform", rows, columns)
        calls = max(1, 2000 // (rows * columns))
        best, end = math.inf, time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(calls):
                linear_sum_assignment(cost)
            best = min(best, (time.perf_counter() - start) / calls)
        print(f"{size} {best * 1e9:.0f}", flush=True)


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="leader/internal/assign/testdata/answers.csv")
    args.add_argument("--bench", nargs="+", metavar="ROWSxCOLUMNS")
    args.add_argument("--seconds", type=float, default=0.5)
    args = args.parse_args()
    if args.bench:
        bench(args.bench, args.seconds)
    else:
        answers(args.out)
