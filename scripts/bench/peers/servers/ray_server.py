"""Ray Serve with one replica. Arguments: the port."""

import os
import signal
import sys

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

sys.path.insert(0, os.path.dirname(__file__))


@serve.deployment(
    num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1}
)
class Server:
    def __init__(self):
        import models

        self.models, self.answer = models.load(), models.answer

    async def __call__(self, request: Request):
        return Response(self.answer(self.models, await request.body()))


if __name__ == "__main__":
    ray.init(
        include_dashboard=False,
        object_store_memory=100 << 20,
        logging_level="warning",
        runtime_env={
            "env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
        },
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Server.bind(), route_prefix="/infer")
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    serve.shutdown()
    ray.shutdown()
