"""What tests of errors share: that an error is one line, and what it says."""

from collections.abc import Callable

import pytest

from shared.errors import UserError


def error_of(action: Callable[[], object], kind: type[Exception] = UserError) -> str:
    """The one line of the error that an action ends in."""
    with pytest.raises(kind) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)
