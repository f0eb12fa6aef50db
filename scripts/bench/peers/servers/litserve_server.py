"""LitServe with one worker. Arguments: the port."""

import sys
from typing import Annotated

import litserve
from fastapi import Body, Response

import models

Bytes = Annotated[bytes, Body(media_type="application/octet-stream")]


class Server(litserve.LitAPI):
    def setup(self, device):
        self.models = models.load()

    def decode_request(self, request: Bytes):
        return request

    def predict(self, body):
        return models.answer(self.models, body)

    def encode_response(self, output):
        return Response(output)


if __name__ == "__main__":
    server = litserve.LitServer(
        Server(api_path="/infer"), accelerator="cpu", timeout=60
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        generate_client_file=False,
    )
