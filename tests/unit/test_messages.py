"""Messages between driver and ranks whose code differs, as where a checkout is edited meanwhile."""

from __future__ import annotations

import pytest

from measurement.errors import LaunchError
from runners.protocol import JOBS, REPLIES, read_message

OTHER = "the driver and its ranks run different code of Ringside"


@pytest.mark.parametrize(
    ("kind", "text", "where"),
    [
        (REPLIES, '{"kind": "ended", "steps": 3, "newer": 1}', "'ended.newer'"),
        (REPLIES, '{"kind": "unheard"}', "''"),
        (JOBS, "{}", "'arm'"),
    ],
)
def test_a_message_of_other_code_is_told_as_that(kind, text, where):
    with pytest.raises(LaunchError) as raised:
        read_message(kind, text)
    assert str(raised.value).startswith(f"{OTHER} ({where}: ")
