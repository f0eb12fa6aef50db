"""Asks an agent with a client that openapi-python-client makes of the agent's OpenAPI document:
openapi_client.py HTTP, which is an address.

The agent serves the model reciprocal of conformance.py.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

url = f"http://{sys.argv[1]}"
folder = tempfile.TemporaryDirectory()
subprocess.run(
    [
        pathlib.Path(sys.executable).with_name("openapi-python-client"),
        *("generate", "--meta", "none", "--url", f"{url}/v2/openapi.json"),
        *("--output-path", f"{folder.name}/generated"),
    ],
    check=True,
    capture_output=True,
)
sys.path.insert(0, folder.name)
from generated import Client, models
from generated.api.health import is_server_ready
from generated.api.inference import infer
from generated.api.models import get_model_metadata

client = Client(base_url=url)
assert is_server_ready.sync(client=client).ready is True
metadata = get_model_metadata.sync("reciprocal", client=client)
assert [(i.name, i.shape) for i in metadata.inputs] == [("x", [-1, 2])]
query = models.InferRequest(
    inputs=[
        models.InputTensor(
            name="x",
            shape=[2, 2],
            datatype=models.InputTensorDatatype.FP32,
            data=[1, 2, 4, 8],
        )
    ]
)
answer = infer.sync("reciprocal", client=client, body=query)
np.testing.assert_allclose(answer.outputs[0].data, [1, 0.5, 0.25, 0.125], rtol=1e-6)
folder.cleanup()
