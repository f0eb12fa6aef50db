"""Puts the binary into the wheel, as a script that pip installs on PATH, and names the platform.

scripts/wheel.sh sets WHEEL_BINARY and WHEEL_PLATFORM. Without them the wheel has no
binary and suits every platform: the client alone.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """See the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = os.environ.get("WHEEL_BINARY")
        if binary:
            build_data["shared_scripts"] = {binary: "muster"}
            build_data["tag"] = f"py3-none-{os.environ['WHEEL_PLATFORM']}"
            build_data["pure_python"] = False
