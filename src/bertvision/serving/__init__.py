"""HTTP server and ONNX export of trained models.

One server can serve several models. Models on the same encoder share its forward pass, and rows of concurrent requests
are batched together.
"""

from bertvision.serving.settings import ServerSettings

__all__ = ["ServerSettings"]
