"""Asks two models of a server until its input ends: tritonclient by gRPC, and requests by REST.

Prints how many queries were answered of each, and which were lost.
"""

import json
import sys
import threading

import numpy as np
import requests
import tritonclient.grpc

HOST, CA = sys.argv[1:]
ended = threading.Event()
answered, lost = {}, []


def repeat(name, ask):
    """Asks again and again."""
    answered[name] = 0
    while not ended.wait(0.02):
        try:
            ask()
            answered[name] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the query is lost
            lost.append(f"{name}: {error}")


def metadata(model):
    """Returns what the server says of a model."""
    return requests.get(
        f"https://{HOST}:8000/v2/models/{model}", verify=CA, timeout=30
    ).json()


def shape_of(of, rows):
    """Returns the shape of an input for so many rows."""
    return [rows if d == -1 else d for d in of["shape"]]


def grpc(model):
    """Returns a query by tritonclient."""
    client = tritonclient.grpc.InferenceServerClient(
        f"{HOST}:8001", ssl=True, root_certificates=CA
    )
    inputs = []
    for of in metadata(model)["inputs"]:
        kind = np.int64 if of["datatype"] == "INT64" else np.float32
        value = np.ones(shape_of(of, 4), kind)
        inputs.append(
            tritonclient.grpc.InferInput(of["name"], value.shape, of["datatype"])
        )
        inputs[-1].set_data_from_numpy(value)
    return lambda: client.infer(model, inputs, client_timeout=30)


def rest(model):
    """Returns a query by REST, with a connection of its own."""
    inputs = []
    for of in metadata(model)["inputs"]:
        shape = shape_of(of, 4)
        data = [1] * int(np.prod(shape))
        inputs.append(
            {
                "name": of["name"],
                "datatype": of["datatype"],
                "shape": shape,
                "data": data,
            }
        )

    def ask():
        answer = requests.post(
            f"https://{HOST}:8000/v2/models/{model}/infer",
            # In microseconds: else it is the model's, which a busy machine misses.
            json={"inputs": inputs, "parameters": {"timeout": 30_000_000}},
            verify=CA,
            timeout=30,
        )
        answer.raise_for_status()
        if not answer.json()["outputs"]:
            raise ValueError(answer.text)

    return ask


def main():
    """Starts a thread for each model and protocol, and prints what they counted."""
    threads = [
        threading.Thread(target=repeat, args=(f"{ask.__name__} {model}", ask(model)))
        for model in ("ncf", "wnd")
        for ask in (grpc, rest)
    ]
    for t in threads:
        t.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for t in threads:
        t.join()
    print(json.dumps({"answered": answered, "lost": len(lost), "why": lost[:3]}))


main()
