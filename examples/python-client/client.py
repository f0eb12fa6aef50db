"""Asks a fleet of Muster for recommendations: one query, several at a time, and a stream.

pip install muster_serve-*.whl                  # make wheel makes it
muster models generate ncf && muster agent      # elsewhere
python client.py
"""

import argparse
import asyncio
import sys

import muster
import numpy as np

MODEL = "ncf"
IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])  # two candidates


def ask_one(servers, timeout):
    with muster.Client(servers) as client:
        return client.predict(MODEL, ids=IDS, deadline=timeout)["scores"]


async def ask_several(servers, timeout):
    """Both candidates, in a query each, at the same time."""
    async with muster.AsyncClient(servers) as client:
        queries = [client.predict(MODEL, ids=[row], deadline=timeout) for row in IDS]
        return np.concatenate(
            [answer["scores"] for answer in await asyncio.gather(*queries)]
        )


def ask_by_stream(servers, timeout):
    """The same, on one stream. A query that fails has its error in place of an answer."""
    scores = []
    with muster.Client(servers) as client:
        for answer in client.stream(
            MODEL, ({"ids": [row]} for row in IDS), deadline=timeout
        ):
            if isinstance(answer, muster.Error):
                raise answer
            scores.append(answer["scores"])
    return np.concatenate(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--servers",
        nargs="+",
        default=["localhost:8001"],
        help="agents' addresses of gRPC",
    )
    parser.add_argument(
        "--timeout", type=float, default=1, help="seconds for an answer"
    )
    args = parser.parse_args()
    try:
        answers = {
            "one query": ask_one(args.servers, args.timeout),
            "two at a time": asyncio.run(ask_several(args.servers, args.timeout)),
            "a stream": ask_by_stream(args.servers, args.timeout),
        }
    except muster.OverloadedError as e:
        sys.exit(f"the fleet is busy, ask again in {e.retry_after} s")
    except muster.Error as e:
        sys.exit(str(e))
    for way, scores in answers.items():
        print(f"{way}: scores of shape {scores.shape}, the first is {scores[0, 0]:g}")
        if not np.allclose(scores, answers["one query"], rtol=1e-5):
            sys.exit("the answers differ")


if __name__ == "__main__":
    main()
