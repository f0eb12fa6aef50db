"""The asynchronous client, to real agents."""

import asyncio

import numpy as np
import pytest

import muster
from muster.testing import Agent

IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=np.int64)


def run(test):
    """Runs a coroutine function as a test."""
    return asyncio.run(test())


@pytest.mark.parametrize("direct", [True, False])
def test_predict(muster_agent, client, direct):
    ids = np.tile(IDS, (500, 1))
    want = client.predict("ncf", ids=ids)["scores"]

    async def test():
        async with muster.AsyncClient(muster_agent.address, direct=direct) as c:
            await c.wait_ready("ncf")
            assert c._fleet.endpoints[0].direct == direct
            answers = await asyncio.gather(
                *(c.predict("ncf", ids=ids[: n + 1], deadline=30) for n in range(50))
            )
            for n, answer in enumerate(answers):
                np.testing.assert_allclose(answer["scores"], want[: n + 1], rtol=1e-5)
            got = await c.predict("ncf", ids=ids, deadline=30)
            np.testing.assert_array_equal(got["scores"], want)
            with pytest.raises(muster.InvalidError, match=r"id 1099511627776 .*request q7"):
                await c.predict("ncf", ids=[[1, 2, 3, 1 << 40]], id="q7")
            with pytest.raises(muster.NotFoundError):
                await c.predict("missing", ids=IDS)
            with pytest.raises(muster.DeadlineError):
                await c.predict("ncf", ids=IDS, deadline=1e-6)
            assert (await c.model("ncf")).largest_batch_size == 1000
        with pytest.raises(muster.ClosedError):
            await c.predict("ncf", ids=IDS)

    run(test)


def test_cancel(muster_agent):
    """A query that is cancelled takes its connection with it, and the next one is answered."""

    async def test():
        async with muster.AsyncClient(muster_agent.address) as c:
            await c.wait_ready("ncf")
            task = asyncio.create_task(c.predict("ncf", ids=IDS))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer = await c.predict("ncf", ids=IDS, deadline=30)
            assert answer["scores"].shape == (2, 64)

    run(test)


def test_stream(muster_agent, client):
    queries = [{"ids": np.full((1, 4), n)} for n in (1, 1 << 40, 2)]

    async def given():
        for query in queries:
            yield query

    async def test():
        async with muster.AsyncClient(muster_agent.address) as c:
            for source in (queries, given()):
                answers = [a async for a in c.stream("ncf", source, deadline=30)]
                assert [isinstance(a, muster.Error) for a in answers] == [False, True, False]
            with pytest.raises(muster.InvalidError, match="has no input"):
                [a async for a in c.stream("ncf", [{"other": IDS}])]

    run(test)


def test_failover(muster_models):
    async def test():
        with Agent({"ncf": muster_models / "ncf"}) as a, Agent({"ncf": muster_models / "ncf"}) as b:
            async with muster.AsyncClient([a.address, b.address]) as c:
                await c.wait_ready("ncf")
                await asyncio.gather(*(c.predict("ncf", ids=IDS, deadline=30) for _ in range(20)))
                a.stop()
                await asyncio.gather(*(c.predict("ncf", ids=IDS, deadline=30) for _ in range(20)))

    run(test)
