"""Which versions are installed, beside the lock of those that the tests passed with."""

import functools
import hashlib
import re
from importlib import metadata
from pathlib import Path

LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"


def lock_hash(lock: Path = LOCK) -> str | None:
    """The SHA-256 of the lock; None without one, or where what is installed departs from it.

    The local part of a version does not count: ``2.13.0+cpu`` is 2.13.0, built for other hardware.
    """
    if not lock.exists():
        return None
    content = lock.read_bytes()
    return hashlib.sha256(content).hexdigest() if _is_installed(content.decode()) else None


@functools.cache
def _is_installed(lock: str) -> bool:
    # A package that has other versions on other systems stands there more than once.
    pinned: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
    for installed in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", installed.name).lower()
        version = installed.version.partition("+")[0]
        if version not in pinned.get(name, {version}):
            return False
    return True
