"""Exports small DLRMs from PyTorch, as users do, to the folder of this script.

    pip install torch onnx onnxscript
    python export.py

Each model has three tables of 50, 60 and 70 rows. The names say how rows are summed (bag:
nn.EmbeddingBag; sum: nn.Embedding and a sum) and which of PyTorch's two exporters wrote the file.
"""

import pathlib
import warnings

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


def main():
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
