"""The models of the corpus: small ones of public exporters, with the exporters' defaults.

Each function below trains models on the same few hundred rows and yields them. A model comes with
the inputs of a query of any number of rows.
"""

import dataclasses
import pathlib
import tempfile
import typing
import warnings

import catboost
import lightgbm
import numpy as np
import onnx
import onnxmltools
import pandas
import xgboost
from onnx import numpy_helper
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn import (
    calibration,
    cluster,
    compose,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_extraction,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

ROWS, FEATURES = 300, 6

warnings.filterwarnings("ignore")


@dataclasses.dataclass
class Model:
    name: str
    exporter: str
    model: onnx.ModelProto
    # inputs(rows) are those of a query, by name; None: the model has only the one of examples.
    inputs: typing.Callable[[int], dict[str, np.ndarray]] | None = None
    examples: list[dict[str, np.ndarray]] = dataclasses.field(default_factory=list)


def data():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    score = x[:, 0] - 0.7 * x[:, 1] * x[:, 2] + 0.3 * random.normal(size=ROWS)
    return x, score.astype(np.float32)


X, SCORE = data()
CLICKED = (SCORE > 0).astype(np.int64)
LEVEL = np.digitize(SCORE, [-0.7, 0.7]).astype(np.int64)
NAMES = np.array(["low", "middle", "high"])[LEVEL]
QUERY_ROWS = np.repeat(30, ROWS // 30)  # of the rankers: queries of 30 rows
WORDS = np.array(
    ["red shoes", "blue shoes for men", "green hat", "red hat", "hat for women"]
)


def rows_of(name):
    """A query's rows are those of X, again and again, each moved a little."""

    def inputs(rows):
        moved = np.random.default_rng(rows).normal(scale=0.1, size=(rows, FEATURES))
        return {name: (X[np.arange(rows) % ROWS] + moved).astype(np.float32)}

    return inputs


def from_sklearn(name, estimator, x=X, y=CLICKED, inputs=None, **options):
    fitted = estimator.fit(x, y)
    return Model(
        f"sklearn-{name}",
        "skl2onnx",
        to_onnx(fitted, x[:1], **options),
        inputs or rows_of("X"),
    )


def classifiers():
    trees = {"n_estimators": 10, "max_depth": 4, "random_state": 1}
    forest = ensemble.RandomForestClassifier(**trees)
    logistic = linear_model.LogisticRegression()
    for name, estimator in {
        "logistic": logistic,
        "sgd": linear_model.SGDClassifier(loss="log_loss", random_state=1),
        "perceptron": linear_model.Perceptron(),
        "linear-svc": svm.LinearSVC(),
        "svc": svm.SVC(probability=True, random_state=1),
        "neighbours": neighbors.KNeighborsClassifier(),
        "tree": tree.DecisionTreeClassifier(max_depth=4),
        "forest": forest,
        "extra-trees": ensemble.ExtraTreesClassifier(**trees),
        "gradient-boosting": ensemble.GradientBoostingClassifier(**trees),
        "hist-gradient-boosting": ensemble.HistGradientBoostingClassifier(max_iter=10),
        "ada-boost": ensemble.AdaBoostClassifier(n_estimators=5),
        "bagging": ensemble.BaggingClassifier(n_estimators=5, random_state=1),
        "voting": ensemble.VotingClassifier(
            [("a", forest), ("b", logistic)], voting="soft", flatten_transform=False
        ),
        "stacking": ensemble.StackingClassifier([("a", forest), ("b", logistic)]),
        "neural": neural_network.MLPClassifier((8,), max_iter=50, random_state=1),
        "gaussian-bayes": naive_bayes.GaussianNB(),
        "bernoulli-bayes": naive_bayes.BernoulliNB(),
        "lda": discriminant_analysis.LinearDiscriminantAnalysis(),
        "qda": discriminant_analysis.QuadraticDiscriminantAnalysis(),
        "calibrated": calibration.CalibratedClassifierCV(svm.LinearSVC()),
        "scaled": pipeline.make_pipeline(preprocessing.StandardScaler(), logistic),
    }.items():
        yield from_sklearn(name, estimator)
    yield from_sklearn("levels", ensemble.RandomForestClassifier(**trees), y=LEVEL)
    yield from_sklearn("named", linear_model.LogisticRegression(), y=NAMES)
    yield from_sklearn("one-vs-rest", multiclass.OneVsRestClassifier(logistic), y=LEVEL)
    yield from_sklearn(
        "several-targets",
        multioutput.MultiOutputClassifier(linear_model.LogisticRegression()),
        y=np.stack([CLICKED, 1 - CLICKED], axis=1),
    )
    yield from_sklearn(
        "without-zipmap", linear_model.LogisticRegression(), options={"zipmap": False}
    )
    yield from_sklearn(
        "zipmap-columns",
        linear_model.LogisticRegression(),
        options={"zipmap": "columns"},
    )


def regressors():
    trees = {"n_estimators": 10, "max_depth": 4, "random_state": 1}
    for name, estimator in {
        "linear": linear_model.LinearRegression(),
        "ridge": linear_model.Ridge(),
        "lasso": linear_model.Lasso(0.01),
        "bayesian-ridge": linear_model.BayesianRidge(),
        "svr": svm.SVR(),
        "neighbours-regressor": neighbors.KNeighborsRegressor(),
        "tree-regressor": tree.DecisionTreeRegressor(max_depth=4),
        "forest-regressor": ensemble.RandomForestRegressor(**trees),
        "gradient-boosting-regressor": ensemble.GradientBoostingRegressor(**trees),
        "hist-gradient-boosting-regressor": ensemble.HistGradientBoostingRegressor(
            max_iter=10
        ),
        "ada-boost-regressor": ensemble.AdaBoostRegressor(
            n_estimators=5, random_state=1
        ),
        "neural-regressor": neural_network.MLPRegressor(
            hidden_layer_sizes=(8,), max_iter=50, random_state=1
        ),
        "gaussian-process": gaussian_process.GaussianProcessRegressor(alpha=0.1),
    }.items():
        yield from_sklearn(name, estimator, y=SCORE)


def transformers():
    for name, estimator in {
        "scaler": preprocessing.StandardScaler(),
        "min-max": preprocessing.MinMaxScaler(),
        "normalizer": preprocessing.Normalizer(),
        "polynomial": preprocessing.PolynomialFeatures(),
        "pca": decomposition.PCA(3),
        "k-means": cluster.KMeans(3, n_init=1, random_state=1),
        "gaussian-mixture": mixture.GaussianMixture(2, random_state=1),
        "select-best": feature_selection.SelectKBest(k=3),
        "imputer": impute.SimpleImputer(),
    }.items():
        yield from_sklearn(name, estimator)

    yield from_sklearn(
        "isolation-forest",
        ensemble.IsolationForest(n_estimators=10, random_state=1),
        target_opset={"": 18, "ai.onnx.ml": 3},  # the newest that its converter knows
    )
    text = WORDS[np.arange(ROWS) % len(WORDS)].reshape(-1, 1)
    yield from_sklearn(
        "one-hot",
        preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        x=text,
        inputs=lambda rows: {"X": text[np.arange(rows) % ROWS].astype(object)},
    )
    yield from_sklearn(
        "tf-idf",
        pipeline.make_pipeline(
            feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression()
        ),
        x=text[:, 0],
        inputs=lambda rows: {
            "X": text[np.arange(rows) % ROWS].astype(object).reshape(rows, 1)
        },
    )

    table = pandas.DataFrame(
        {"age": X[:, 0], "price": X[:, 1], "title": text[:, 0], "visits": LEVEL}
    )
    columns = compose.ColumnTransformer(
        [
            ("numbers", preprocessing.StandardScaler(), ["age", "price"]),
            ("title", preprocessing.OneHotEncoder(handle_unknown="ignore"), ["title"]),
            ("visits", "passthrough", ["visits"]),
        ]
    )

    def of_table(rows):
        some = table.iloc[np.arange(rows) % ROWS]
        return {
            name: some[name].to_numpy(kind).reshape(rows, 1)
            for name, kind in {
                "age": np.float32,
                "price": np.float32,
                "title": object,
                "visits": np.int64,
            }.items()
        }

    yield from_sklearn(
        "table",
        pipeline.make_pipeline(columns, linear_model.LogisticRegression()),
        x=table,
        inputs=of_table,
    )


def of_lightgbm():
    quick = {"n_estimators": 10, "num_leaves": 8, "verbose": -1}
    for name, estimator, y in [
        ("classifier", lightgbm.LGBMClassifier(**quick), CLICKED),
        ("levels", lightgbm.LGBMClassifier(**quick), LEVEL),
        ("regressor", lightgbm.LGBMRegressor(**quick), SCORE),
        (
            "poisson",
            lightgbm.LGBMRegressor(objective="poisson", **quick),
            np.exp(SCORE),
        ),
        (
            "forest",
            lightgbm.LGBMClassifier(
                boosting_type="rf", bagging_freq=1, bagging_fraction=0.5, **quick
            ),
            CLICKED,
        ),
    ]:
        yield lightgbm_model(name, estimator.fit(X, y))
    ranker = lightgbm.LGBMRanker(**quick).fit(X, LEVEL, group=QUERY_ROWS)
    yield lightgbm_model("lambdarank", ranker.booster_)


def lightgbm_model(name, fitted):
    model = onnxmltools.convert_lightgbm(
        fitted, initial_types=[("input", FloatTensorType([None, FEATURES]))]
    )
    return Model(f"lightgbm-{name}", "onnxmltools (LightGBM)", model, rows_of("input"))


def of_xgboost():
    quick = {"n_estimators": 10, "max_depth": 4}
    for name, estimator, y in [
        ("classifier", xgboost.XGBClassifier(**quick), CLICKED),
        ("levels", xgboost.XGBClassifier(**quick), LEVEL),
        ("regressor", xgboost.XGBRegressor(**quick), SCORE),
        (
            "poisson",
            xgboost.XGBRegressor(objective="count:poisson", **quick),
            np.exp(SCORE),
        ),
        ("forest", xgboost.XGBRFClassifier(**quick), CLICKED),
    ]:  # onnxmltools has no converter for XGBRanker
        yield xgboost_model(name, estimator.fit(X, y))


def xgboost_model(name, fitted):
    model = onnxmltools.convert_xgboost(
        fitted, initial_types=[("input", FloatTensorType([None, FEATURES]))]
    )
    return Model(f"xgboost-{name}", "onnxmltools (XGBoost)", model, rows_of("input"))


def of_catboost():
    quick = {
        "iterations": 10,
        "depth": 4,
        "verbose": False,
        "allow_writing_files": False,
    }
    for name, estimator, y in [
        ("classifier", catboost.CatBoostClassifier(**quick), CLICKED),
        ("levels", catboost.CatBoostClassifier(**quick), LEVEL),
        ("named", catboost.CatBoostClassifier(**quick), NAMES),
        ("regressor", catboost.CatBoostRegressor(**quick), SCORE),
        ("ranker", catboost.CatBoostRanker(loss_function="YetiRank", **quick), LEVEL),
    ]:
        if name == "ranker":
            estimator.fit(
                X, y, group_id=np.repeat(np.arange(len(QUERY_ROWS)), QUERY_ROWS)
            )
        else:
            estimator.fit(X, y)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.onnx"
            estimator.save_model(str(path), format="onnx")
            model = onnx.load(path)
        yield Model(
            f"catboost-{name}", "CatBoost", model, rows_of(model.graph.input[0].name)
        )


def of_onnx():
    """The models in the onnx package: those of PyTorch's tests, and of ONNX's own."""
    folder = pathlib.Path(onnx.__file__).parent / "backend/test/data"
    for path in sorted(folder.glob("*/*/model.onnx")) + sorted(
        folder.glob("light/*.onnx")
    ):
        name = path.stem if path.parent.name == "light" else path.parent.name
        exporter = {
            "pytorch-converted": "PyTorch (torch.onnx)",
            "pytorch-operator": "PyTorch (torch.onnx)",
        }.get(path.relative_to(folder).parts[0], "onnx's own tests")
        model, examples = onnx.load(path), []
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [i for i in model.graph.input if i.name not in weights]
        for data_set in sorted(path.parent.glob("test_data_set_*")):
            tensors = {}
            for i, value in enumerate(inputs):
                file = data_set / f"input_{i}.pb"
                if not file.exists() or not value.type.HasField("tensor_type"):
                    break
                tensor = onnx.TensorProto.FromString(file.read_bytes())
                tensors[value.name] = numpy_helper.to_array(tensor)
            else:
                examples.append(tensors)
        if not examples and path.parent.name == "light":
            shape = [d.dim_value or 1 for d in inputs[0].type.tensor_type.shape.dim]
            x = np.random.default_rng(1).random(shape, dtype=np.float32)
            examples = [{inputs[0].name: x}]
        yield Model(f"onnx-{name}", exporter, model, None, examples)


def all_models():
    for source in (
        classifiers,
        regressors,
        transformers,
        of_lightgbm,
        of_xgboost,
        of_catboost,
        of_onnx,
    ):
        yield from source()
