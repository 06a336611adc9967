"""Messages in a store that others write to as well."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import HashStore

from measurement.errors import LaunchError
from runners.protocol.sealed_store import SealedStore


@pytest.fixture
def stores():
    """A driver's and a rank's, upon the same store."""
    bare = HashStore()
    return SealedStore(bare, key="k"), SealedStore(bare, key="k")


def test_a_message_is_read_as_it_was_written(stores):
    driver, rank = stores
    text = '{"message": "größer, with  spaces\\n"}'
    assert not rank.wait(["0/ddp/job"], timedelta(milliseconds=10))
    driver.set("0/ddp/job", text)
    assert rank.wait(["0/ddp/job"], timedelta(seconds=10))
    assert rank.get("0/ddp/job") == text.encode()
    driver.set("0/naive/job", "{}")
    assert rank.get_all(["0/naive/job", "0/ddp/job"]) == [b"{}", text.encode()]
    driver.remove("0/ddp/job")
    assert not rank.has("0/ddp/job")


@pytest.mark.parametrize(
    "forge",
    [
        lambda bare: bare.set("0/ddp/job", '{"workload": "evil.py:C"}'),
        lambda bare: bare.set("0/ddp/job", ""),
        lambda bare: bare.set("0/ddp/job", bytes([255, 0, 32, 32]).decode("latin1")),
        lambda bare: SealedStore(bare, key="another").set("0/ddp/job", "{}"),
        lambda bare: bare.set("0/ddp/job", bare.get("0/other/job")),
        lambda bare: bare.set("0/ddp/job", bare.get("0/ddp/job").decode() + " "),
    ],
    ids=["plain", "empty", "no text", "another key", "of another place", "longer"],
)
def test_what_somebody_else_wrote_is_refused(stores, forge):
    driver, rank = stores
    driver.set("0/other/job", "{}")
    driver.set("0/ddp/job", "{}")
    forge(driver.bare)
    with pytest.raises(LaunchError, match="'0/ddp/job' in the driver's store was not written by this comparison"):
        rank.get("0/ddp/job")
    with pytest.raises(LaunchError, match="'0/ddp/job' in the driver's store was not written by this comparison"):
        rank.get_all(["0/other/job", "0/ddp/job"])
