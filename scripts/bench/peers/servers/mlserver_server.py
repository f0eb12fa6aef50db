"""A runtime of MLServer for models of ONNX Runtime. Arguments: the ports for HTTP and gRPC, and a
folder for MLServer's settings."""

import asyncio
import os
import sys
from pathlib import Path

from mlserver import MLModel, MLServer
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelSettings, Settings
from mlserver.types import InferenceResponse

import models


class Server(MLModel):
    async def load(self):
        self.model = models.Model(self.settings.parameters.uri)
        self.names = [o.name for o in self.model.session.get_outputs()]
        return True

    async def predict(self, payload):
        feed = {i.name: NumpyCodec.decode_input(i) for i in payload.inputs}
        outputs = zip(self.names, self.model.run(feed), strict=True)
        return InferenceResponse(
            model_name=self.name,
            outputs=[NumpyCodec.encode_output(name, o) for name, o in outputs],
        )


async def main():
    http, grpc, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    server = MLServer(
        Settings(
            host="127.0.0.1",
            http_port=http,
            grpc_port=grpc,
            metrics_port=http + 2,
            parallel_workers=0,
            grpc_max_message_length=64 << 20,
            metrics_dir=str(folder),
            debug=False,
        )
    )
    all_settings = []
    for path in sorted(Path(os.environ["REPOSITORY"]).glob("*/1/model.onnx")):
        name = path.parts[-3]
        all_settings.append(
            ModelSettings(
                name=name, implementation=Server, parameters={"uri": str(path)}
            )
        )
    await server.start(all_settings)


if __name__ == "__main__":
    asyncio.run(main())
