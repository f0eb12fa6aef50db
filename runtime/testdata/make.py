#!/usr/bin/env python3
"""Writes the classifiers of this folder as their exporters do by default, and answers.json: what
ONNX Runtime answers for some rows, by the column of its maps.

pip install numpy onnx onnxruntime scikit-learn skl2onnx onnxmltools lightgbm catboost
"""
import json
import os

import numpy
import onnxruntime
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

here = os.path.dirname(os.path.abspath(__file__))
random = numpy.random.RandomState(1)
x = random.rand(200, 3).astype(numpy.float32)
classes = (x.sum(axis=1) * 2).astype(int) % 3
texts = numpy.array(["low", "middle, \"or\" so", "high"])[classes]
clicks = (x[:, 0] > x[:, 1]).astype(int)


def write(name, model):
    with open(os.path.join(here, name + ".onnx"), "wb") as f:
        f.write(model.SerializeToString())


write("logistic", to_onnx(LogisticRegression().fit(x, classes), x[:1]))
write("forest", to_onnx(RandomForestClassifier(3, max_depth=3, random_state=1).fit(x, texts), x[:1]))
write("lightgbm", convert_lightgbm(
    LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(x, clicks),
    initial_types=[("input", FloatTensorType([None, 3]))]))
CatBoostClassifier(iterations=3, depth=2, verbose=0, random_seed=1).fit(x, clicks).save_model(
    os.path.join(here, "catboost.onnx"), format="onnx", export_parameters={})

rows = x[:5]
answers = {"rows": rows.tolist(), "models": {}}
for name in ["logistic", "forest", "lightgbm", "catboost"]:
    session = onnxruntime.InferenceSession(os.path.join(here, name + ".onnx"))
    input = session.get_inputs()[0].name
    label, maps = session.run(None, {input: rows})
    answers["models"][name] = {
        "input": input,
        "label": [str(v) for v in numpy.asarray(label).tolist()],
        "labels": [str(k) for k in maps[0]],
        "values": [[float(v) for v in row.values()] for row in maps],
    }
with open(os.path.join(here, "answers.json"), "w") as f:
    json.dump(answers, f)
    f.write("\n")
