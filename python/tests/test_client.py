"""Queries of the synchronous client, to real agents."""

import multiprocessing
import threading

import numpy as np
import pytest

import muster
from muster.testing import Agent

IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.int64)


def test_predict(client):
    answer = client.predict("ncf", ids=IDS, deadline=30)
    scores = answer["scores"]
    assert scores.shape == (2, 64)
    assert scores.dtype == np.float32
    assert answer.model == "ncf"
    assert answer.version == "1"
    scores[0, 0] = 1  # it is the caller's


@pytest.mark.parametrize("direct", [True, False])
def test_ways_agree(muster_agent, client, direct):
    """Connections for queries and gRPC answer alike, with large queries, too."""
    ids = np.tile(IDS, (500, 1))
    want = client.predict("ncf", ids=ids)["scores"]
    with muster_agent.client(direct=direct) as c:
        c.wait_ready("ncf")
        assert [e.direct for e in c._fleet.endpoints] == [direct]
        for _ in range(3):
            np.testing.assert_array_equal(c.predict("ncf", {"ids": ids})["scores"], want)
        opened = [e.opened for e in c._fleet.endpoints]
    assert opened == [int(direct)]


@pytest.mark.parametrize("direct", [True, False])
def test_errors(muster_agent, direct):
    """An error says what was found, which query it was, and what to do."""
    with muster_agent.client(direct=direct) as c:
        c.wait_ready("ncf")
        with pytest.raises(muster.InvalidError) as found:
            c.predict("ncf", ids=[[1, 2, 3, 1 << 40]], id="q7")
        e = found.value
        assert (e.code, e.reason, e.request_id) == ("INVALID_ARGUMENT", "invalid", "q7")
        assert e.address == muster_agent.address
        assert "id 1099511627776 at position [0 3]" in str(e)
        assert "request q7" in str(e)
        assert "client.model(name).inputs" in str(e)
        with pytest.raises(muster.NotFoundError, match='model "missing"'):
            c.predict("missing", ids=IDS)
        with pytest.raises(muster.InvalidError, match="want 1 to 1000"):
            c.predict("ncf", ids=np.ones((1001, 4), np.int64))
        with pytest.raises(TimeoutError) as late:
            c.predict("ncf", ids=IDS, deadline=1e-6)
        assert isinstance(late.value, muster.DeadlineError)
        assert c.predict("ncf", ids=IDS)["scores"].shape == (2, 64)


def test_wrong_inputs(client):
    with pytest.raises(muster.InvalidError, match="has no input 'id': it has ids"):
        client.predict("ncf", {"id": IDS})
    with pytest.raises(muster.InvalidError, match="float64, but the model takes INT64"):
        client.predict("ncf", ids=[[1.5, 2, 3, 4]])
    with pytest.raises(muster.InvalidError, match="unlike lengths"):
        client.predict("ncf", ids=[[1, 2], [3]])
    with pytest.raises(muster.InvalidError, match="seconds above 0"):
        client.predict("ncf", ids=IDS, deadline=-1)


def test_unreachable():
    with muster.Client("127.0.0.1:1") as c, pytest.raises(muster.UnavailableError) as found:
        c.predict("ncf", ids=IDS, deadline=5)
    assert isinstance(found.value, ConnectionError)
    assert "muster status" in str(found.value)


def test_closed(muster_agent):
    c = muster_agent.client()
    c.predict("ncf", ids=IDS)
    c.close()
    with pytest.raises(muster.ClosedError):
        c.predict("ncf", ids=IDS)


def test_threads(client):
    """More threads than connections ask at the same time, and each gets its own answers."""
    want = {n: client.predict("ncf", ids=np.full((n, 4), n))["scores"] for n in range(1, 17)}
    wrong = []

    def ask(n):
        for _ in range(10):
            if not np.array_equal(client.predict("ncf", ids=np.full((n, 4), n))["scores"], want[n]):
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in want]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def _ask_in_child(client, pipe):
    pipe.send(client.predict("ncf", ids=IDS, deadline=30)["scores"])


def test_stream(client):
    """Answers come in the order of the queries, and an error in place of an answer."""
    queries = [{"ids": np.full((1, 4), n)} for n in (1, 2, 1 << 40, 3)]
    answers = list(client.stream("ncf", iter(queries), deadline=30))
    assert [isinstance(a, muster.Error) for a in answers] == [False, False, True, False]
    for query, answer in zip(queries, answers, strict=True):
        if isinstance(answer, muster.Answer):
            want = client.predict("ncf", query)["scores"]
            np.testing.assert_array_equal(answer["scores"], want)


def test_stream_of_wrong_query(client):
    """A query that cannot be encoded ends the stream with its error."""
    with pytest.raises(muster.InvalidError, match="has no input"):
        list(client.stream("ncf", [{"ids": IDS}, {"other": IDS}]))


def test_family(client):
    any_will_do = client.predict("doubles", x=[[1, 2]])
    assert any_will_do.variant in ("best", "fast")
    answer = client.predict("doubles", x=[[1, 2]], min_accuracy=0.95)
    assert (answer.variant, answer.accuracy) == ("best", 1)
    np.testing.assert_array_equal(answer["y"], [[2, 4]])
    assert client.model("doubles").variants == ("best", "fast")


def test_parameters(client):
    """A priority and other parameters go with the query, and a trace."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = client.predict(
        "ncf", ids=IDS, priority=1, parameters={"shop": "a"}, traceparent=trace, outputs=["scores"]
    )
    assert list(answer) == ["scores"]


def test_model(client):
    model = client.model("ncf")
    assert model.inputs["ids"] == muster.Port("ids", "INT64", (-1, 4))
    assert model.largest_batch_size == 1000
    assert model.deadline == 60
    assert client.is_ready()
    assert client.is_ready("ncf")
    assert not client.is_ready("missing")


def test_failover(muster_models):
    """With one of two agents gone, queries go to the other one; when both are, the error says so."""
    models = {"ncf": muster_models / "ncf"}
    with Agent(models) as a, Agent(models) as b, muster.Client([a.address, b.address]) as c:
        c.wait_ready("ncf")
        for _ in range(20):
            c.predict("ncf", ids=IDS, deadline=30)
        a.stop()
        for _ in range(20):
            c.predict("ncf", ids=IDS, deadline=30)
        b.stop()
        with pytest.raises(muster.UnavailableError) as found:
            c.predict("ncf", ids=IDS, deadline=30)
        assert found.value.attempts == 2


def test_load(muster_models):
    """Answers tell a client of several agents their load."""
    models = {"ncf": muster_models / "ncf"}
    with Agent(models) as a, Agent(models) as b, muster.Client([a.address, b.address]) as c:
        c.wait_ready("ncf")
        for _ in range(1000):
            c.predict("ncf", ids=IDS, deadline=30)
            if all(e.load_at for e in c._fleet.endpoints):
                break
        else:
            pytest.fail("no load after 1,000 answers")


@pytest.fixture(scope="module")
def secured(tmp_path_factory, muster_models):
    """An agent with TLS, names, rights and limits, and the folder of its certificates."""
    import subprocess

    from muster.testing import find_binary

    work = tmp_path_factory.mktemp("certs")
    for command in (["init"], ["issue", "agent", "node1"], ["issue", "client", "shop"]):
        subprocess.run([find_binary(), "certs", *command], cwd=work, check=True)
    keys, access = work / "keys", work / "access.yaml"
    keys.write_text("ads: " + "k" * 32 + "\n")
    keys.chmod(0o600)
    access.write_text(
        "clients:\n"
        '  shop: {models: ["*"]}\n'
        "  ads: {models: [ncf], limits: {queries_per_second: 5, burst: 1}}\n"
    )
    certs = work / "certs"
    with Agent(
        muster_models,
        *("--tls-cert", str(certs / "node1.crt"), "--tls-key", str(certs / "node1.key")),
        *("--tls-ca", str(certs / "ca.crt"), "--api-keys", str(keys), "--access", str(access)),
    ) as agent:
        yield agent, certs


@pytest.mark.parametrize("direct", [True, False])
def test_tls(secured, direct):
    agent, certs = secured
    tls = muster.TLS(
        certs / "ca.crt", certs / "shop.crt", certs / "shop.key", server_name="agent.muster"
    )
    with agent.client(tls=tls, direct=direct) as c:
        c.wait_ready("ncf")
        assert c.predict("ncf", ids=IDS, deadline=30)["scores"].shape == (2, 64)
        assert c._fleet.endpoints[0].direct == direct
    wrong = muster.TLS(certs / "ca.crt", server_name="other.example")
    with agent.client(tls=wrong) as c, pytest.raises(muster.UnavailableError):
        c.predict("ncf", ids=IDS, deadline=30)


@pytest.mark.parametrize("direct", [True, False])
def test_key(secured, direct):
    """A key gives its rights and limits. A refusal is retried within the deadline, as it says."""
    agent, certs = secured
    tls = muster.TLS(certs / "ca.crt", server_name="agent.muster")
    with agent.client(tls=tls, api_key=lambda: "k" * 32, direct=direct) as c:
        for _ in range(3):  # of which five a second are allowed
            c.predict("ncf", ids=IDS, deadline=30)
        with pytest.raises(muster.LimitError) as refused:
            for _ in range(100):
                c.predict("ncf", ids=IDS, deadline=0.1)
        assert 0 < refused.value.retry_after < 1
        with pytest.raises(muster.DeniedError):
            c.predict("echo", {"int64": [[1, 2]]})
    with agent.client(tls=tls) as c, pytest.raises(muster.DeniedError):
        c.predict("ncf", ids=IDS)


def test_key_in_clear():
    with pytest.raises(ValueError, match="unencrypted"):
        muster.Client("10.0.0.1:8001", api_key="k")


def test_fork(client):
    """A client from before a fork serves in both processes."""
    client.predict("ncf", ids=IDS)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_ask_in_child, args=(client, there))
    child.start()
    assert here.poll(60)
    np.testing.assert_array_equal(here.recv(), client.predict("ncf", ids=IDS)["scores"])
    child.join()
