"""Answers over HTTP: several runs, one forward pass per backbone, requests answered together."""

from bertvision.serving.settings import ServerSettings

__all__ = ["ServerSettings"]
