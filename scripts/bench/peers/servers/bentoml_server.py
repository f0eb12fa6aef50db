"""BentoML with one worker. `bentoml serve bentoml_server:Server` starts it."""

from pathlib import Path
from typing import Annotated

import bentoml
from bentoml.validators import ContentType

import models

Bytes = Annotated[Path, ContentType("application/octet-stream")]


@bentoml.service(
    workers=1,
    traffic={"timeout": 60, "max_concurrency": 1024},
    logging={"access": {"enabled": False}},
)
class Server:
    def __init__(self):
        self.models = models.load()

    @bentoml.api(route="/infer")
    def infer(self, body: Bytes, /) -> bytes:
        return models.answer(self.models, body.read_bytes())
