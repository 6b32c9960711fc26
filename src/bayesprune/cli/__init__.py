"""The command `bayesprune`."""

from bayesprune.cli.app import app, main

__all__ = ["app", "main"]
