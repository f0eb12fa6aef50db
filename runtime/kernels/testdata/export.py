"""Exports small DLRMs from PyTorch, as users do, to the folder of this script.

    pip install torch onnx onnxscript
    python export.py [bags]

Each model has three tables of 50, 60 and 70 rows. The names say how rows are summed (bag:
nn.EmbeddingBag; sum: nn.Embedding and a sum) and which of PyTorch's two exporters wrote the file.
Those that begin with bags and rows have two nn.EmbeddingBags each, of ids with offsets and of a
matrix of ids; PyTorch 2.15 has written them. "bags" writes these alone.
"""

import pathlib
import sys
import warnings

import onnx
import torch
from torch import nn

warnings.filterwarnings("ignore")
FOLDER = pathlib.Path(__file__).parent
ROWS, DIM, LOOKUPS = (50, 60, 70), 16, 4


class DLRM(nn.Module):
    """dense [N, 8] and ids [N, 3, 4]; `mode` is how each table's rows become one."""

    def __init__(self, mode, packed=True, interact=False):
        super().__init__()
        torch.manual_seed(1)
        self.mode, self.packed, self.interact = mode, packed, interact
        kind = nn.EmbeddingBag if mode.startswith("bag") else nn.Embedding
        options = {"mode": mode.removeprefix("bag_")} if kind is nn.EmbeddingBag else {}
        self.tables = nn.ModuleList(kind(rows, DIM, **options) for rows in ROWS)
        self.bottom = nn.Sequential(nn.Linear(8, DIM), nn.ReLU())
        width = 4 * DIM if not interact else DIM + 16
        self.top = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def look_up(self, i, ids):
        if self.mode.startswith("bag"):
            return self.tables[i](ids)
        rows = self.tables[i](ids)
        if self.mode == "single":
            return rows
        return rows.mean(dim=1) if self.mode == "mean" else rows.sum(dim=1)

    def forward(self, dense, *ids):
        x = self.bottom(dense)
        if self.packed:
            parts = [ids[0][:, i] for i in range(len(ROWS))]
        else:
            parts = ids
        features = [x] + [self.look_up(i, part) for i, part in enumerate(parts)]
        if not self.interact:
            return self.top(torch.cat(features, dim=1))
        stacked = torch.stack(features, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products], dim=1))


def export(name, model, shape, dynamo):
    model.eval()
    ids = [torch.zeros(shape, dtype=torch.int64)]
    if not model.packed:
        ids = [torch.zeros(shape, dtype=torch.int64) for _ in ROWS]
    names = ["dense"] + (["ids"] if model.packed else [f"ids_{i}" for i in range(len(ROWS))])
    options = {"dynamic_axes": {name: {0: "batch"} for name in [*names, "score"]}}
    if dynamo:
        batch = torch.export.Dim("batch", min=2, max=4096)
        options = {"dynamic_shapes": [{0: batch}, tuple({0: batch} for _ in ids)]}
    path = FOLDER / f"{name}.onnx"
    torch.onnx.export(
        model,
        (torch.zeros(shape[0], 8), *ids),
        str(path),
        input_names=names,
        output_names=["score"],
        dynamo=dynamo,
        **({"external_data": False} if dynamo else {}),
        **options,
    )
    print(path.name, path.stat().st_size, "bytes")


class Bags(nn.Module):
    """Two nn.EmbeddingBags side by side; forward takes what exporters name: see export_bags."""

    def __init__(self, mode, weights, last, padding=None):
        super().__init__()
        torch.manual_seed(1)
        options = {"mode": mode, "include_last_offset": last, "padding_idx": padding}
        self.weights, self.flat = weights, True
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, DIM, **options) for rows in ROWS[:2])
        self.top = nn.Linear(2 * DIM, 1)

    def forward(self, *inputs):
        each = len(inputs) // 2
        parts = []
        for table, of in zip(self.tables, (inputs[:each], inputs[each:]), strict=True):
            weights = of[-1] if self.weights else None
            offsets = of[1] if self.flat else None
            parts.append(table(of[0], offsets, per_sample_weights=weights))
        return self.top(torch.cat(parts, dim=1))


def export_bags(name, model, dynamo, opset=None):
    """Inputs a_values, a_offsets, a_weights and the same of b, or matrices a, a_weights."""
    model.eval()
    args, names, dims = [], [], []
    for i, of in enumerate("ab"):
        count = 7 + i
        if model.flat:
            last = [count] if model.tables[0].include_last_offset else []
            args += [torch.arange(count), torch.tensor([0, 2, 5 - i, *last])]
            names += [f"{of}_values", f"{of}_offsets"]
            dims += [f"v{of}", "n1" if last else "n"]
        else:
            args.append(torch.ones(3, LOOKUPS + i, dtype=torch.int64))
            names.append(of)
            dims.append("n")
        if model.weights:
            args.append(torch.rand(args[-2 if model.flat else -1].shape))
            names.append(f"{of}_weights")
            dims.append(f"v{of}" if model.flat else "n")
    path = FOLDER / f"{name}-{'dynamo' if dynamo else 'script'}.onnx"
    if dynamo:
        known = {d: torch.export.Dim(d, min=1, max=1 << 20) for d in sorted(set(dims))}
        options = {"dynamic_shapes": (tuple({0: known[d]} for d in dims),), "external_data": False}
    else:
        options = {"dynamic_axes": {**{n: {0: d} for n, d in zip(names, dims, strict=True)},
                                    "score": {0: "n"}}}
    torch.onnx.export(model, tuple(args), str(path), input_names=names, output_names=["score"],
                      dynamo=dynamo, opset_version=opset, **options)
    shorten(path)
    print(path.name, path.stat().st_size, "bytes")


def shorten(path):
    """Leaves out where in the source each node comes from: most of the file."""
    file = onnx.load(path)

    def visit(graph):
        del graph.metadata_props[:], graph.value_info[:]
        for node in graph.node:
            node.doc_string = ""
            del node.metadata_props[:]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g)
        for value in (*graph.input, *graph.output):
            del value.metadata_props[:]

    visit(file.graph)
    del file.metadata_props[:], file.functions[:]
    onnx.save(file, path)


def export_all_bags():
    for name, dynamo, mode, weights, last, flat, opset in (
        ("bags-sum", False, "sum", False, False, True, None),
        ("bags-sum-weights", False, "sum", True, True, True, None),
        ("bags-mean", False, "mean", False, True, True, None),
        ("bags-max", False, "max", False, False, True, None),
        ("bags-sum", True, "sum", False, True, True, None),
        ("bags-sum-weights", True, "sum", True, False, True, None),
        ("bags-mean", True, "mean", False, False, True, None),
        ("bags-mean-last", True, "mean", False, True, True, None),
        ("bags-max", True, "max", False, True, True, None),
        ("rows-sum-weights", False, "sum", True, False, False, 13),
        ("rows-max", False, "max", False, False, False, None),
        ("rows-mean", True, "mean", False, False, False, None),
        ("rows-sum-weights", True, "sum", True, False, False, None),
    ):
        model = Bags(mode, weights, last)
        model.flat = flat
        export_bags(name, model, dynamo, opset)
    export_bags("bags-padding", Bags("sum", False, False, padding=0), True)


def main():
    export_all_bags()
    if "bags" in sys.argv:
        return
    for dynamo in (False, True):
        exporter = "dynamo" if dynamo else "script"
        for name, model, shape in (
            ("sum", DLRM("sum"), (4, 3, LOOKUPS)),
            ("sum-apart", DLRM("sum", packed=False), (4, LOOKUPS)),
            ("mean", DLRM("mean"), (4, 3, LOOKUPS)),
            ("single", DLRM("single"), (4, 3)),
            ("stack", DLRM("sum", interact=True), (4, 3, LOOKUPS)),
            ("bag-sum", DLRM("bag_sum"), (4, 3, LOOKUPS)),
            ("bag-mean", DLRM("bag_mean"), (4, 3, LOOKUPS)),
        ):
            try:
                export(f"{name}-{exporter}", model, shape, dynamo)
            except Exception as e:  # an exporter that cannot; the tests have what it could
                print(f"{name}-{exporter}: {type(e).__name__}: {str(e).splitlines()[0]}")


if __name__ == "__main__":
    main()
