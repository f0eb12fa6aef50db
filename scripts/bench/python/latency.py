"""The time of a query by muster.Client, beside tritonclient's and a bare grpcio call of the same bytes.

All ask one agent, in turns, in one process. Prints the medians, those of the client's CPU time, and the
ratio of muster to tritonclient. run.sh runs it.
"""

import argparse
import gc
import statistics
import time

import grpc
import muster
import muster.testing
import numpy as np
import tritonclient.grpc as triton

CASES = (("ncf", 1), ("wnd", 64), ("rm2", 64))
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def inputs_of(model, rows):
    """Random inputs within the bounds of the model's ids."""
    rng = np.random.default_rng(1)
    inputs = {}
    for port in model.inputs.values():
        shape = (rows, *port.shape[1:])
        if port.datatype != "INT64":
            inputs[port.name] = rng.random(shape, dtype=np.float32)
            continue
        bounds = [int(b) for b in model.properties[f"id_bounds.{port.name}"].split(",")]
        if len(shape) == 2:
            inputs[port.name] = rng.integers(0, bounds, shape)
        else:
            inputs[port.name] = rng.integers(0, min(bounds), shape)
    return inputs


def ways(address, name, inputs, output):
    """The clients, by name; each call asks, and returns the answer's output."""
    direct, by_grpc = muster.Client(address), muster.Client(address, direct=False)
    direct.wait_ready(name)
    theirs = triton.InferenceServerClient(address)
    bare = grpc.insecure_channel(
        address,
        [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
    ).unary_unary(METHOD)
    known = by_grpc._describe(name, "", 5)
    parts, _ = by_grpc._encode(known, inputs, {}, (), "1", None)
    message = b"".join(parts)

    def by_triton():
        given = []
        for input_name, array in inputs.items():
            datatype = "INT64" if array.dtype == np.int64 else "FP32"
            tensor = triton.InferInput(input_name, array.shape, datatype)
            tensor.set_data_from_numpy(array)
            given.append(tensor)
        return theirs.infer(name, given).as_numpy(output)

    return {
        "tritonclient": by_triton,
        "bare grpcio": lambda: bare(message),
        "muster": lambda: direct.predict(name, inputs)[output],
        "muster, by gRPC": lambda: by_grpc.predict(name, inputs)[output],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", required=True, help="a repository with ncf, wnd and rm2"
    )
    parser.add_argument(
        "--queries", type=int, default=2000, help="of each client and model"
    )
    args = parser.parse_args()
    with muster.testing.Agent(args.models) as agent:
        ways_asked = "tritonclient | bare grpcio | muster | muster, by gRPC"
        print(f"| query | what | {ways_asked} | ratio |")
        print("| --- | --- |" + " --- |" * 5)
        for name, rows in CASES:
            with agent.client() as client:
                model = client.model(name)
            output = next(iter(model.outputs))
            asked = ways(agent.address, name, inputs_of(model, rows), output)
            wall = {way: [] for way in asked}
            cpu = {way: [] for way in asked}
            answers = {way: ask() for way, ask in asked.items() if way != "bare grpcio"}
            for way, answer in answers.items():
                assert np.array_equal(answer, answers["tritonclient"]), way
            gc.disable()
            order = list(asked)
            for i in range(args.queries):
                for way in order[i % len(order) :] + order[: i % len(order)]:
                    began, worked = time.perf_counter_ns(), time.process_time_ns()
                    asked[way]()
                    cpu[way].append(time.process_time_ns() - worked)
                    wall[way].append(time.perf_counter_ns() - began)
                if i % 100 == 0:
                    gc.collect()
            gc.enable()
            for what, found in (("time", wall), ("the client's CPU time", cpu)):
                middle = {way: statistics.median(x) / 1e3 for way, x in found.items()}
                figures = " | ".join(f"{us:,.0f} µs" for us in middle.values())
                ratio = middle["muster"] / middle["tritonclient"]
                print(
                    f"| {name.upper()} {rows} | {what} | {figures} | {ratio:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
