"""Helpers that the tests of logs share."""

import pytest

from dubnb._check import InputError


def pairs(data, *parts, column="labels"):
    """{(user id, item id): label, or another column} of some parts."""
    found = {}
    for part in parts:
        log = data.triplets(part)
        keys = zip(data.user_ids.values[log.users].tolist(), data.item_ids.values[log.items].tolist(), strict=True)
        found |= dict(zip(keys, getattr(log, column).tolist(), strict=True))
    return found


def refused(message, call, *arguments, **options):
    """The call raises an InputError of one line that matches the message."""
    with pytest.raises(InputError, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value), "one line"


def same(one, other):
    """Whether two Partitions are equal."""
    return one.fingerprint == other.fingerprint
