"""What is written: records of launches, a folder of results, tables of steps."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Written(BaseModel):
    """Base of what is stored."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")
