"""FastAPI and ONNX Runtime, as most people would write it, with bytes in place of JSON."""

from fastapi import FastAPI, Request, Response

import models

app, loaded = FastAPI(), models.load()


@app.post("/infer")
async def infer(request: Request):
    return Response(models.answer(loaded, await request.body()))
