"""What of a back end may be searched for speed: a setting is an option with the values worth trying (``Backend.search_space``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An option that changes how fast steps are."""

    option: str
    """As in a plan."""
    values: tuple[Any, ...]
    """Worth trying, in order: neighbours are alike."""
    variable: str | None = None
    """Environment variable that sets it, too; a plan that sets this has fixed the option."""
    only_with: Mapping[str, Any] = field(default_factory=dict)
    """Values of other options without which it means nothing."""
    is_lossy: bool = False
    """Whether values other than the default send less than the gradients, so that training may come out otherwise."""
