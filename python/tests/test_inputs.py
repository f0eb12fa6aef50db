"""What callers have, as tensors: types, ranks, ragged columns, tables."""

import numpy as np
import pytest

import muster
from muster import _inputs, _tensors, _wire, answer

VALUES = {
    "bool": np.array([[True, False]]),
    "int8": np.array([[-128, 127]]),
    "int16": np.array([[-32768, 32767]]),
    "int32": np.array([[-(2**31), 2**31 - 1]]),
    "int64": np.array([[-(2**63), 2**63 - 1]]),
    "uint8": np.array([[0, 255]]),
    "uint16": np.array([[0, 65535]]),
    "uint32": np.array([[0, 2**32 - 1]]),
    "uint64": np.array([[0, 2**64 - 1]], dtype=np.uint64),
    "fp16": np.array([[1.5, -0.25]]),
    "fp32": np.array([[1.5, np.inf]]),
    "fp64": np.array([[np.pi, -np.inf]]),
    "bf16": np.array([[1.5, -2.0]]),
    "bytes": np.array([["äb", ""]]),
}


@pytest.mark.parametrize("direct", [True, False])
def test_types(muster_agent, direct):
    """Each type goes there and comes back."""
    with muster_agent.client(direct=direct) as c:
        c.wait_ready("echo")
        for rows in (1, 9000):  # small, and larger than one write
            inputs = {k: np.repeat(v, rows, axis=0) for k, v in VALUES.items() if k != "bytes"}
            inputs["bytes"] = np.repeat(VALUES["bytes"], rows, axis=0)
            found = c.predict("echo", inputs)
            for name, value in inputs.items():
                got = found[f"{name}_out"]
                assert got.shape == value.shape
                np.testing.assert_array_equal(got.astype(value.dtype), value, name)


def test_bytes(client):
    """Strings that are not UTF-8 come back as bytes."""
    rest = {k: v for k, v in VALUES.items() if k != "bytes"}
    got = client.predict("echo", rest, bytes=[[b"\xff", b"a"]])["bytes_out"]
    assert got.tolist() == [[b"\xff", b"a"]]


def test_bf16_by_hand():
    """BF16 without ml_dtypes is rounded as ml_dtypes rounds."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(1).standard_normal((100, 100)).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    want = x.astype(ml_dtypes.bfloat16)
    got = _tensors.round_to_bf16(x)
    np.testing.assert_array_equal(got[1:], want.view(np.uint16)[1:])
    np.testing.assert_array_equal(
        (got.astype(np.uint32) << 16).view(np.float32), want.astype(np.float32)
    )


def test_casts():
    with pytest.raises(ValueError, match="from 0 to 256, but its type is UINT8: 0 to 255"):
        _tensors.cast(np.array([0, 256]), "UINT8", "x")
    with pytest.raises(TypeError, match="float64, but the model takes INT32"):
        _tensors.cast(np.array([0.5]), "INT32", "x")
    assert _tensors.cast(np.array([1, 2]), "FP32", "x").dtype == np.float32


def test_user_once(client):
    """A user's input is given once: as a scalar, a list of one, or for each row."""
    want = [3 * 7 + 1, 3 * 8 + 5, 3 * 9]
    for user in (3, [3], [3, 3, 3]):
        got = client.predict("tags", user_id=user, item_ids=[7, 8, 9], tags=[[1], [2, 3], []])
        np.testing.assert_array_equal(got["scores"], want)


@pytest.mark.parametrize("model", ["tags", "splits"])
def test_ragged(client, model):
    """A ragged input may be a list of lists, columns of pandas, polars and Arrow, or muster.Ragged."""
    tags = [[1.0], [2.0, 3.0], []]
    forms = [tags, [np.array(t) for t in tags]]
    forms.append(muster.Ragged(np.array([1, 2, 3]), np.array([1, 2, 0])))
    for module, make in (
        ("pyarrow", lambda m: m.array(tags)),
        ("pyarrow", lambda m: m.chunked_array([m.array(tags[:1]), m.array(tags[1:])])),
        ("polars", lambda m: m.Series(tags)),
        ("pandas", lambda m: m.Series(tags)),
    ):
        try:
            forms.append(make(__import__(module)))
        except ImportError:
            continue
    for form in forms:
        got = client.predict(model, user_id=1, item_ids=[7, 8, 9], tags=form)
        np.testing.assert_array_equal(got["scores"], [8, 13, 9])
    with pytest.raises(muster.InvalidError, match="list of lists"):
        client.predict(model, user_id=1, item_ids=[7, 8, 9], tags=[1, 2, 3])


def test_ragged_as_it_is(client):
    """Who has values and lengths may send them."""
    got = client.predict("tags", user_id=1, item_ids=[7, 8], tags=[1, 2, 3], tag_lengths=[1, 2])
    np.testing.assert_array_equal(got["scores"], [8, 13])


def test_ragged_keys():
    """Several features in one input, with weights: by key as TorchRec has them, or by row."""
    ports = {
        name: muster.Port(name, t, shape, "ragged")
        for name, t, shape in (
            ("v", "INT64", (-1,)),
            ("w", "FP32", (-1,)),
            ("l", "INT32", (-1,)),
        )
    }
    given = {
        "v": [[[1], [2, 3]], [[4, 5], []]],  # two features of two rows
        "w": [[[0.1], [0.2, 0.3]], [[0.4, 0.5], []]],
    }

    def tensors(**more):
        feature = muster.RaggedFeature("v", "l", weights="w", keys=2, **more)
        model = muster.Model("m", (), ports, {}, {"v": feature})
        return {p.name: a.tolist() for p, a in _inputs.tensors_of(model, given, {})}

    by_key = tensors(form="lengths", key_major=True)
    assert (by_key["v"], by_key["l"]) == ([1, 2, 3, 4, 5], [1, 2, 2, 0])
    by_row = tensors(form="lengths")
    assert (by_row["v"], by_row["l"]) == ([1, 4, 5, 2, 3], [1, 2, 2, 0])
    assert np.allclose(by_row["w"], [0.1, 0.4, 0.5, 0.2, 0.3])
    assert tensors(form="offsets")["l"] == [0, 1, 3, 5]
    assert tensors(form="offsets", last_offset=True)["l"] == [0, 1, 3, 5, 5]
    assert tensors(form="row_splits")["l"] == [0, 1, 3, 5, 5]


@pytest.mark.parametrize("module", ["pandas", "polars", "pyarrow"])
def test_tables(client, module):
    """A table's columns are inputs, other columns are left out, and an answer becomes a table."""
    library = pytest.importorskip(module)
    data = {
        "user_id": [1.0, 1.0],
        "item_ids": [7.0, 8.0],
        "tags": [[1.0], [2.0, 3.0]],
        "seen": ["a", "b"],
    }
    table = library.table(data) if module == "pyarrow" else library.DataFrame(data)
    found = client.predict("tags", table)
    np.testing.assert_array_equal(found["scores"], [8, 13])
    back = getattr(found, {"pyarrow": "to_arrow"}.get(module, f"to_{module}"))()
    columns = back.column_names if module == "pyarrow" else list(back.columns)
    assert columns == ["scores"]
    assert len(back) == 2


@pytest.mark.parametrize("module", ["pandas", "polars", "pyarrow"])
def test_matrix(client, module):
    """A table of other columns is the matrix of a model's only input."""
    library = pytest.importorskip(module)
    data = {n: [1, 2] for n in "abcd"}
    table = library.table(data) if module == "pyarrow" else library.DataFrame(data)
    want = client.predict("ncf", ids=[[1, 1, 1, 1], [2, 2, 2, 2]])
    np.testing.assert_array_equal(client.predict("ncf", table)["scores"], want["scores"])
    np.testing.assert_array_equal(client.predict("ncf", ids=table)["scores"], want["scores"])
    assert len(want.columns()) == 64


def test_varints():
    """Numbers of the wire come back, and those cut off are errors."""
    for n in (0, 1, 127, 128, 300, 2**32, 2**63 - 1, 2**64 - 1):
        assert _wire.read_varint(_wire.varint(n), 0) == (n, len(_wire.varint(n)))
    for value in (True, False, -5, 7, 1.5, "x", 2**63):
        assert _wire.read_parameter(_wire.parameter("p", value)) == ("p", value)
    with pytest.raises(ValueError, match="5 bytes, where 1 are left"):
        list(_wire.fields(b"\x0a\x05a"))


@pytest.mark.parametrize("data", [b"\x2a", b"\x32\x7f", b"\x32\x01a", b"\x2a\x02\x0a\x05"])
def test_answer_cut_off(data):
    """Answers that are cut off, or have contents without an output, are errors."""
    with pytest.raises(muster.Error, match="the answer cannot be read"):
        answer.decode(memoryview(data))
