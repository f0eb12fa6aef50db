"""A real agent for tests.

def test_scores(muster_agent):
    with muster_agent.client() as c:
        assert c.predict("ncf", ids=[[1, 2, 3, 4]])["scores"].shape == (1, 64)

The fixture serves what the fixture muster_models returns: by default the repository that pytest's
setting of the same name says. Without pytest, start one with
`with muster.testing.Agent(models="model-repository") as agent:`.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from ._client import Client

if TYPE_CHECKING:
    import pytest


def find_binary() -> str:
    """The path of the command muster: MUSTER_BINARY, else that of this package, else that on PATH."""
    if named := os.environ.get("MUSTER_BINARY"):
        return named
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder, "muster")
        if os.access(path, os.X_OK):
            return path
    if path := shutil.which("muster") or "":
        return path
    raise FileNotFoundError(
        "no command muster: install the wheel muster-serve of this platform, "
        "or name the binary in MUSTER_BINARY"
    )


class AgentFailed(RuntimeError):
    """The agent did not start, or ended; the message has the end of its log."""


class Agent:
    """A `muster agent` on free ports of loopback, with its state in a folder that goes with it.

    It is ready, with all models loaded, when the constructor returns. Use it as a context manager, or
    call stop.

    Attributes:
        address: "host:port" of its gRPC, for muster.Client.
        http, metrics, gossip: its other addresses.
        process: the process.
    """

    def __init__(
        self,
        models: str | Path | Mapping[str, str | Path] | None = None,
        *arguments: str,
        timeout: float = 60.0,
        binary: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts an agent.

        Args:
            models: a model repository; or files model.onnx, or folders of models, by the name that
                each shall have; None: none.
            arguments: further flags of `muster agent`.
            timeout: seconds until it must be ready.
            binary: the command; None: find_binary().
            environment: variables besides this process's.
        """
        self._work = Path(tempfile.mkdtemp(prefix="muster-agent-"))
        self._lines: list[str] = []
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.address = self.http = self.metrics = self.gossip = ""
        try:
            command = [
                binary or find_binary(),
                "agent",
                "--model-dir",
                str(self._repository(models)),
            ]
            command += ["--state-dir", str(self._work / "state"), "--log-format", "json"]
            for listener in ("http", "grpc", "metrics", "gossip"):
                if f"--{listener}" not in arguments:
                    command += [f"--{listener}", "127.0.0.1:0"]
            self.process = subprocess.Popen(
                [*command, *arguments],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={
                    **{k: v for k, v in os.environ.items() if k != "MUSTER_BINARY"},
                    **(environment or {}),
                },
            )
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        try:
            self._wait_ready(timeout)
        except BaseException:
            self.stop()
            raise

    def _repository(self, models: str | Path | Mapping[str, str | Path] | None) -> Path:
        if models is not None and not isinstance(models, Mapping):
            return Path(models).absolute()
        repository = self._work / "models"
        repository.mkdir()
        for name, source in (models or {}).items():
            path = Path(source).absolute()
            if path.is_dir():
                (repository / name).symlink_to(path)
            else:
                (repository / name / "1").mkdir(parents=True)
                (repository / name / "1" / "model.onnx").symlink_to(path)
        return repository

    def _read(self, log: IO[str]) -> None:
        for line in log:
            self._lines.append(line)
            try:
                self._messages.put(json.loads(line))
            except ValueError:
                pass
        self._messages.put(None)

    def _wait_ready(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:
            try:
                record = self._messages.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise AgentFailed(
                    f"the agent is not ready after {timeout:g} s:\n{self.log}"
                ) from None
            if record is None:
                raise AgentFailed(f"the agent has ended ({self.process.wait()}):\n{self.log}")
            if "advertised_addr" in record:
                self.gossip = record["addr"]
            if record.get("event") == "started":
                self.address, self.http = record["grpc"], record["http"]
                self.metrics = record["metrics"]
            if record.get("event") == "ready":
                return

    @property
    def log(self) -> str:
        """What the agent has logged, in lines of JSON; the last 200."""
        return "".join(self._lines[-200:])

    def client(self, **settings: Any) -> Client:
        """A client of this agent, with the settings of muster.Client."""
        return Client(self.address, **settings)

    def stop(self, timeout: float = 30.0) -> int:
        """Stops the agent, and returns its exit status. One that does not stop is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        shutil.rmtree(self._work, ignore_errors=True)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is not None:
            print(f"log of the agent at {self.address}:\n{self.log}", file=sys.stderr)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting of the fixtures to pytest."""
    parser.addini("muster_models", "the model repository of the fixture muster_agent", default="")


def _models(pytestconfig: pytest.Config) -> Any:
    """What muster_agent serves, as Agent takes it: the repository that pytest's setting muster_models
    names. A conftest.py may have another fixture of the name."""
    folder = str(pytestconfig.getini("muster_models"))
    return pytestconfig.rootpath / folder if folder else None


def _agent(muster_models: Any) -> Iterator[Agent]:
    """An agent for all tests of a session."""
    with Agent(muster_models) as agent:
        yield agent


try:
    import pytest as _pytest
except ImportError:  # the module serves programs without pytest, too
    pass
else:
    muster_models = _pytest.fixture(scope="session", name="muster_models")(_models)
    muster_agent = _pytest.fixture(scope="session", name="muster_agent")(_agent)
