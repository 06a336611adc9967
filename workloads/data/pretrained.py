"""torchvision's classifiers by name, and weights to start from: a state dict in a file. Nothing is downloaded.

Importing torchvision takes a second, so it is done on first use.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from measurement.errors import PlanError, unknown_name
from workloads.data.files import first_few

Model = TypeVar("Model", bound=nn.Module)
DAMAGED_PICKLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    struct.error,
    TypeError,
    ValueError,
)
"""What ``pickle`` raises on damaged bytes."""
UNREADABLE = (*DAMAGED_PICKLE, AssertionError)
"""What ``torch.load`` raises if a file is damaged, or holds more than tensors and plain values."""


def with_weights(model: Model, path: Path | None, *, new_head: bool = False) -> Model:
    """Load the state dict of ``path`` into ``model`` and return it. Without a path, return it unchanged.

    ``new_head``: tensors that differ in their first dimension only, which is the number of classes, stay as they were initialised.

    Raises:
        PlanError: the file is missing, holds no state dict, or holds that of another model.
    """
    if path is None:
        return model
    weights, wanted = _read(path), model.state_dict()
    heads = {key for key, found in weights.items() if key in wanted and _is_other_head(found, wanted[key])}
    wrong = _mismatches({key: wanted[key] if new_head and key in heads else found for key, found in weights.items()}, wanted)
    if wrong:
        remedy = "; say new_head: true if these are of another number of classes" if heads and not new_head else ""
        raise PlanError(f"pretrained '{path}' holds the weights of another model: {'; '.join(wrong)}{remedy}")
    model.load_state_dict({key: found for key, found in weights.items() if key not in heads}, strict=False)
    return model


def _is_other_head(found: Tensor, wanted: Tensor) -> bool:
    """Whether they differ in their first dimension, and in nothing else."""
    return found.ndim == wanted.ndim > 0 and found.shape[0] != wanted.shape[0] and found.shape[1:] == wanted.shape[1:]


@lru_cache(maxsize=1)
def _read(path: Path) -> Mapping[str, Tensor]:
    """Read a state dict. Cached, because the gate builds the model again."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise PlanError(f"pretrained '{path.absolute()}' does not exist; give a file that torch.save wrote") from error
    except UNREADABLE as error:
        raise PlanError(
            f"pretrained '{path}' cannot be read as weights alone ({type(error).__name__}): it is damaged, or holds more than "
            "tensors, which is never unpickled; write it with torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        kind = f"a dict of {first_few(map(str, found))}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise PlanError(f"pretrained '{path}' holds {kind}, no state dict; write it with torch.save(model.state_dict(), path)")
    return found


def _mismatches(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Say in a few words what keeps ``found`` from being loaded."""
    kinds = {
        "missing": [key for key in wanted if key not in found],
        "unexpected": [key for key in found if key not in wanted],
        "of other shape": [
            f"{key} {list(found[key].shape)}, not {list(tensor.shape)}"
            for key, tensor in wanted.items()
            if key in found and found[key].shape != tensor.shape
        ],
    }
    return [f"{kind}: {first_few(keys)}" for kind, keys in kinds.items() if keys]


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
