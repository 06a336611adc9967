"""Plain values checked by a model: all that is wrong with them is told in one message. Ranks check their options by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.config import ExtraValues

from measurement.errors import PlanError, cut, joined, quoted, unknown_name

Model = TypeVar("Model", bound=BaseModel)
OptionsElsewhere = Callable[[], Mapping[str, str]]
"""Gives names that are options in another place, with the place; asked only where something is unknown."""


def checked(
    model: type[Model],
    content: Mapping[str, Any],
    *,
    source: str,
    elsewhere: OptionsElsewhere = dict,
    extra: ExtraValues | None = None,
) -> Model:
    """``model`` made from ``content``, or one PlanError that tells every unknown key (with the closest known) and bad value.

    ``extra``: "ignore" leaves unknown keys out.
    """
    try:
        return model.model_validate(content, extra=extra)
    except UnicodeError as error:
        raise PlanError(f"{source}: a text holds half of a character (\\ud800 to \\udfff), which is none; write it out") from error
    except ValidationError as error:
        places = elsewhere()
        raise PlanError(f"{source}: {joined([_explain(model, issue, places) for issue in error.errors()])}") from error


def _explain(model: type[BaseModel], issue: Any, elsewhere: Mapping[str, str]) -> str:
    place = cut(".".join(str(part) for part in issue["loc"]))
    if issue["type"] == "extra_forbidden":
        *section, name = issue["loc"]
        where = f" in '{cut('.'.join(map(str, section)))}'" if section else ""
        return unknown_name("option", str(name), fields_at(model, section), elsewhere=elsewhere) + where
    if issue["type"] == "missing":
        return f"'{place}' is missing"
    message = issue["msg"].removeprefix("Value error, ")
    return f"{place} = {quoted(issue['input'])}: {cut(message)}" if place else cut(message)


def fields_at(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """The field names of the section that ``path`` leads to."""
    section: Any = model
    for part in path:
        if isinstance(section, type) and issubclass(section, BaseModel) and part in section.model_fields:
            section = section.model_fields[str(part)].annotation
        arguments = getattr(section, "__args__", ())
        section = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), section)
    return list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []
