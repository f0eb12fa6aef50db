"""muster.export, with the libraries that are installed."""

import numpy as np
import pytest

import muster

RNG = np.random.default_rng(1)
X = RNG.normal(size=(300, 6)).astype(np.float32)
SCORE = X[:, 0] - 0.7 * X[:, 1] * X[:, 2]
CLICKED = (SCORE > 0).astype(np.int64)


def exported(model, sample, path, **more):
    """Exports, and returns the answer of an agent for the sample."""
    version = muster.export(model, sample, path, **more)
    assert version == path / "1"
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
    return version


def test_sklearn(tmp_path, capsys):
    linear_model = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("skl2onnx")
    model = linear_model.LogisticRegression().fit(X, CLICKED)
    exported(model, X.astype(np.float64), tmp_path / "clicks", qos_target_ms=20)
    printed = capsys.readouterr().out
    assert "features are FP32; the sample has float64" in printed
    assert "the sample: probabilities differs by" in printed
    assert "256 random rows: probabilities differs by" in printed
    assert (tmp_path / "clicks" / "model.yaml").read_text() == "qos_target_ms: 20\n"
    assert muster.export(model, X, tmp_path / "clicks") == tmp_path / "clicks" / "2"


def test_sklearn_tables(tmp_path):
    """A table is a matrix, or an input for each column if the model chooses among columns."""
    pandas = pytest.importorskip("pandas")
    linear_model = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("skl2onnx")
    from sklearn import compose, pipeline, preprocessing

    table = pandas.DataFrame(X[:, :2], columns=["price", "age"])
    exported(linear_model.LinearRegression().fit(table, SCORE), table, tmp_path / "a" / "linear")
    table["shop"] = np.where(X[:, 2] > 0, "a", "b")
    chosen = compose.ColumnTransformer(
        [
            ("numbers", "passthrough", ["price", "age"]),
            ("shop", preprocessing.OneHotEncoder(), ["shop"]),
        ]
    )
    model = pipeline.make_pipeline(chosen, linear_model.LinearRegression()).fit(table, SCORE)
    exported(model, table, tmp_path / "b" / "columns")


def test_refused(tmp_path):
    """A model that answers otherwise after its export is refused, and nothing is written."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    pytest.importorskip("skl2onnx")

    model = linear_model.LinearRegression().fit(X, SCORE)
    own = model.predict
    model.predict = lambda given: own(given) + 0.01 * (given[:, 0] > 1)  # which no converter sees
    with pytest.raises(muster.ExportError, match="differ by more than 0.001; at .* the model says"):
        muster.export(model, X, tmp_path / "odd")
    assert list(tmp_path.iterdir()) == []


def test_unknown(tmp_path):
    with pytest.raises(muster.ExportError, match="builtins.dict: expected a model of torch"):
        muster.export({}, X, tmp_path / "x")


@pytest.mark.parametrize("kind", ["LGBMClassifier", "LGBMRegressor"])
def test_lightgbm(tmp_path, kind):
    lightgbm = pytest.importorskip("lightgbm")
    pytest.importorskip("onnxmltools")
    target = CLICKED if "Classifier" in kind else SCORE
    model = getattr(lightgbm, kind)(n_estimators=10, verbose=-1).fit(X, target)
    exported(model, X, tmp_path / "trees")


@pytest.mark.parametrize("kind", ["XGBClassifier", "XGBRegressor"])
def test_xgboost(tmp_path, kind):
    xgboost = pytest.importorskip("xgboost")
    pytest.importorskip("onnxmltools")
    target = CLICKED if "Classifier" in kind else SCORE
    exported(getattr(xgboost, kind)(n_estimators=10).fit(X, target), X, tmp_path / "trees")


@pytest.mark.parametrize("kind", ["CatBoostClassifier", "CatBoostRegressor"])
def test_catboost(tmp_path, kind):
    catboost = pytest.importorskip("catboost")
    target = CLICKED if "Classifier" in kind else SCORE
    model = getattr(catboost, kind)(iterations=10, verbose=False, allow_writing_files=False)
    exported(model.fit(X, target), X, tmp_path / "trees")


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_torch(tmp_path, exporter):
    torch = pytest.importorskip("torch")

    class Ranker(torch.nn.Module):
        """One user, many candidates."""

        def __init__(self):
            super().__init__()
            self.users = torch.nn.Embedding(50, 8)
            self.items = torch.nn.Embedding(100, 8)

        def forward(self, user_id, item_ids):
            return (self.users(user_id) * self.items(item_ids)).sum(1)

    sample = {"user_id": np.array([7]), "item_ids": RNG.integers(0, 100, 40)}
    version = exported(
        Ranker().eval(), sample, tmp_path / "ranker", user=["user_id"], outputs=["scores"],
        exporter=exporter,
    )  # fmt: skip
    assert 'sent_once: ["user_id"]' in (version.parent / "model.yaml").read_text()


def test_keras(tmp_path):
    keras = pytest.importorskip("keras")
    pytest.importorskip("tf2onnx")
    layers = [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    exported(keras.Sequential(layers), X, tmp_path / "dense")
