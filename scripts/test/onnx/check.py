"""Runs onnx.checker on every model of a model directory, with shape inference
and external data, and checks that the file of weights is used completely."""

import pathlib
import sys

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data


def check(path):
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path), load_external_data=False)
    used = {}
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            info = ExternalDataInfo(tensor)
            end = info.offset + info.length
            used[info.location] = max(used.get(info.location, 0), end)
            assert info.offset % 4096 == 0, (
                f"{tensor.name} begins at {info.offset}, not at a page"
            )
    assert used, "no weights outside of the model file"
    for location, end in used.items():
        size = (path.parent / location).stat().st_size
        assert size == end, f"{location} has {size} bytes, the model uses {end}"
    onnx.load(str(path))
    return len(model.graph.node)


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*/*/model.onnx"))
    if not paths:
        sys.exit(f"no models in {sys.argv[1]}")
    for path in paths:
        print(f"{path}: ", end="", flush=True)
        print(f"ok, {check(path)} nodes")


main()
