"""A client of Muster, which serves ONNX recommendation models on fleets of unlike machines.

with muster.Client("localhost:8001") as c:
    scores = c.predict("ncf", ids=[[1, 2, 3, 4]], deadline=.05)["scores"]
"""

from importlib.metadata import PackageNotFoundError as _NotFound
from importlib.metadata import version as _version

from ._aio import AsyncClient
from ._base import TLS
from ._client import Client
from ._export import ExportError, export
from ._inputs import Ragged
from .answer import Answer
from .errors import (
    ClosedError,
    DeadlineError,
    DeniedError,
    Error,
    InvalidError,
    LimitError,
    NotFoundError,
    OverloadedError,
    TooLargeError,
    UnavailableError,
)
from .model import Model, Port, RaggedFeature

try:
    __version__ = _version("muster-serve")
except _NotFound:  # imported from a clone
    __version__ = "0"

__all__ = [
    "TLS",
    "Answer",
    "AsyncClient",
    "Client",
    "ClosedError",
    "DeadlineError",
    "DeniedError",
    "Error",
    "ExportError",
    "InvalidError",
    "LimitError",
    "Model",
    "NotFoundError",
    "OverloadedError",
    "Port",
    "Ragged",
    "RaggedFeature",
    "TooLargeError",
    "UnavailableError",
    "export",
]
