"""Asks an agent of Muster for recommendations in three ways: with NVIDIA's tritonclient by gRPC and
by HTTP, as you would ask Triton, and with nothing but requests.

pip install -r requirements.txt
muster models generate ncf && muster agent      # elsewhere
python client.py
"""

import argparse
import sys

import numpy as np
import requests
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

MODEL = "ncf"
IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.int64)  # two candidates


def by_triton(module, address, timeout):
    """gRPC and HTTP differ in the module alone. The server drops the query after its timeout."""
    client = module.InferenceServerClient(address)
    ids = module.InferInput("ids", IDS.shape, "INT64")
    ids.set_data_from_numpy(IDS)
    answer = client.infer(MODEL, [ids], timeout=int(timeout * 1e6))  # in microseconds
    client.close()
    return answer.as_numpy("scores")


def by_requests(address, timeout):
    query = {
        "inputs": [
            {
                "name": "ids",
                "datatype": "INT64",
                "shape": IDS.shape,
                "data": IDS.tolist(),
            }
        ],
        "parameters": {"timeout": int(timeout * 1e6)},
    }
    answer = requests.post(
        f"http://{address}/v2/models/{MODEL}/infer", json=query, timeout=timeout + 1
    )
    if answer.status_code == 429:
        sys.exit(f"the fleet is busy, ask again in {answer.headers['Retry-After']} s")
    if not answer.ok:
        sys.exit(f"{answer.status_code}: {answer.json()['error']}")
    scores = answer.json()["outputs"][0]
    return np.array(scores["data"], dtype=np.float32).reshape(scores["shape"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--http", default="localhost:8000", help="an agent's address for REST"
    )
    parser.add_argument(
        "--grpc", default="localhost:8001", help="an agent's address for gRPC"
    )
    parser.add_argument(
        "--timeout", type=float, default=1, help="seconds for an answer"
    )
    args = parser.parse_args()
    try:
        answers = {
            "tritonclient, gRPC": by_triton(tritonclient.grpc, args.grpc, args.timeout),
            "tritonclient, HTTP": by_triton(tritonclient.http, args.http, args.timeout),
            "requests": by_requests(args.http, args.timeout),
        }
    except InferenceServerException as e:
        sys.exit(f"{e.status()}: {e.message()}")
    for way, scores in answers.items():
        print(f"{way}: scores of shape {scores.shape}, the first is {scores[0, 0]:g}")
        if not np.array_equal(scores, answers["requests"]):
            sys.exit("the answers differ")


if __name__ == "__main__":
    main()
