"""Models that are as they were but for some fields."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def changed(model: Model, /, **fields: Any) -> Model:
    """A copy with these fields, which are not checked."""
    return model.model_copy(update=fields)
