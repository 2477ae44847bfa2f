"""The optimizer and the loss scaler."""

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from bertvision import devices


def build_optimizer(model: nn.Module, learning_rate: float, weight_decay: float, layer_decay: float = 1.0) -> AdamW:
    """Return AdamW (fused), without weight decay on biases and norms.

    A model whose parts learn at different rates has a method `learning_rate_scales`, which returns pairs of a module
    and the factor of its learning rate. With `layer_decay`, the factors of an encoder's `layer_scales` come first.
    """
    groups, taken = [], set()
    scales = model.learning_rate_scales() if hasattr(model, "learning_rate_scales") else [(model, 1.0)]  # pyright: ignore[reportCallIssue]
    encoders: list[Any] = [part for part in model.modules() if layer_decay != 1 and hasattr(part, "layer_scales")]
    for part, lr_scale in [*(scale for encoder in encoders for scale in encoder.layer_scales(layer_decay)), *scales]:
        trained = [p for p in part.parameters() if p.requires_grad and id(p) not in taken]
        taken.update(map(id, trained))
        decayed, plain = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
        groups += [{"params": decayed, "weight_decay": weight_decay, "lr_scale": lr_scale}]
        groups += [{"params": plain, "weight_decay": 0.0, "lr_scale": lr_scale}]
    return AdamW([group for group in groups if group["params"]], lr=learning_rate, fused=True)


def build_grad_scaler(enabled: bool) -> torch.amp.GradScaler:  # pyright: ignore[reportPrivateImportUsage]
    """Return a scaler of the loss, so that float16 keeps small gradients. If it is disabled, it changes nothing."""
    return torch.amp.GradScaler(devices.device().type, enabled=enabled)  # pyright: ignore[reportPrivateImportUsage]
