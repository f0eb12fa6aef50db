"""Asks an agent with KServe's own client: kserve_client.py HTTP GRPC, which are addresses.

The agent serves the model reciprocal of conformance.py.
"""

import asyncio
import sys

import numpy as np

http, grpc = sys.argv[1:]
sys.argv[1:] = []  # kserve parses them when it is imported
import kserve

X = np.array([[1, 2], [4, 8]], np.float32)


def query(binary):
    tensor = kserve.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return kserve.InferRequest("reciprocal", [tensor])


def check(answer):
    np.testing.assert_allclose(answer.outputs[0].as_numpy(), 1 / X, rtol=1e-5)


async def main():
    rest, url = (
        kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2")),
        f"http://{http}",
    )
    assert await rest.is_server_live(url) is True
    assert await rest.is_server_ready(url) is True
    assert await rest.is_model_ready(url, "reciprocal") is True
    for binary in (False, True):
        check(await rest.infer(url, query(binary), model_name="reciprocal"))
    await rest.close()
    client = kserve.InferenceGRPCClient(grpc)
    assert await client.is_server_live() is True
    assert await client.is_server_ready() is True
    assert await client.is_model_ready("reciprocal") is True
    check(await client.infer(query(False)))
    await client.close()


asyncio.run(main())
