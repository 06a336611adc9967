"""torchvision's classifiers by name, with random weights. Importing torchvision takes a second, so it is done on first use."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from torch import nn

from measurement.errors import unknown_name


def _known(name: str) -> str:
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ValueError(unknown_name("torchvision model", name, known))
    return name


ClassifierName = Annotated[str, AfterValidator(_known)]
"""Any classifier of ``torchvision.models``."""


def build_classifier(name: str, *, num_classes: int) -> nn.Module:
    """Return a classifier with random weights."""
    import torchvision

    extra = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **extra)
    return model
