"""What the servers have in common: the models of a repository, and one way to run a query of bytes.

A query is the model's name in 8 bytes and then the inputs' values, one input behind the other. The
answer is the outputs' values. Environment: REPOSITORY, THREADS, SPINNING (1 or 0), and PROVIDER if
it is not the CPU's.
"""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


class Model:
    def __init__(self, path):
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(os.environ["THREADS"])
        options.inter_op_num_threads = 1
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", os.environ["SPINNING"]
        )
        self.session = ort.InferenceSession(
            str(path), options, [os.environ.get("PROVIDER", "CPUExecutionProvider")]
        )
        self.inputs = []
        for port in self.session.get_inputs():
            row = [int(d) for d in port.shape[1:]]
            self.inputs.append((port.name, np.dtype(TYPES[port.type]), row))
        self.row = sum(t.itemsize * int(np.prod(row)) for _, t, row in self.inputs)

    def feed(self, body, at=0):
        """Returns the inputs that body has from an offset, which share its memory."""
        batch, feed = (len(body) - at) // self.row, {}
        for name, data_type, row in self.inputs:
            n = batch * int(np.prod(row))
            feed[name] = np.frombuffer(body, data_type, n, at).reshape([batch, *row])
            at += n * data_type.itemsize
        return feed

    def run(self, feed):
        return self.session.run(None, feed)


def load():
    """Returns the models of the repository by their names."""
    found = Path(os.environ["REPOSITORY"]).glob("*/1/model.onnx")
    return {path.parts[-3]: Model(path) for path in sorted(found)}


def answer(models, body):
    """Answers a query."""
    model = models[bytes(body[:8]).rstrip(b"\0").decode()]
    outputs = model.run(model.feed(body, 8))
    return (
        outputs[0].tobytes()
        if len(outputs) == 1
        else b"".join(o.tobytes() for o in outputs)
    )
