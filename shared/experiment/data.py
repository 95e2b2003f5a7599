"""Data of all domains: where they are, what is missing, and checksums.

Folders that are written once, which are exports and data prepared for training, have a
``SHA256SUMS`` in the format of sha256sum. One process prepares data, and all others use them.
Archives are downloaded over https, compared with a SHA-256 in the code, and only then unpacked,
never outside their folder.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from filelock import FileLock, Timeout

from shared.errors import UserError, first_line
from shared.experiment.checkout import of_checkout
from shared.experiment.files import replacing, write_atomically

SUMS, META = "SHA256SUMS", "meta.json"
ROOM = "choose a writable data root with free space: --data-root or SUITE_DATA"
MIRROR = "SUITE_MIRROR"  # an address of archives in place of their own, https or file: for tests
LARGEST_UNKNOWN = 2**30  # bytes that an archive without a published checksum unpacks to
TIMEOUT = 60.0  # seconds without a byte after which a download fails


class MissingData(UserError):
    """A dataset that is not on this disk; cells that need it are 'not run', the others continue.

    ``folder`` is where it belongs, ``command`` downloads it, ``how`` says what to do if none can.
    """

    def __init__(self, name: str, folder: Path, command: str, how: str = "") -> None:
        super().__init__(name, folder, command, how)  # what it is pickled as
        self.name, self.folder, self.command, self.how = name, folder, command, how
        self.remedy = how or f"fetch it with: {command}"

    def __str__(self) -> str:
        return f"{self.name}: data missing in {self.folder}; {self.remedy}"


APPROXIMATE = " approximate"  # suffix of fingerprints of data that are not the published files
MARKER = "APPROXIMATE.json"


@dataclass(frozen=True)
class Approximation:
    """How a copy of data differs from the published files, and its checksums by name of a file."""

    what: str
    md5: Mapping[str, str]


def approximation(folder: Path) -> Approximation | None:
    """The content of ``APPROXIMATE.json`` in a folder of data; None without one."""
    marker = folder / MARKER
    if not marker.is_file():
        return None
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        return Approximation(str(content["what"]), dict(content.get("md5", {})))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{marker}: not an object with 'what' and 'md5' ({error}); correct it"
        ) from error


def is_approximate(fingerprint: str) -> bool:
    """Whether a recorded fingerprint is of data that are not the published files."""
    return fingerprint.endswith(APPROXIMATE)


def data_root(argument: str | Path | None = None) -> Path:
    """The folder that holds the datasets: the argument, else ``SUITE_DATA``, else ``data/``."""
    return Path(argument or os.environ.get("SUITE_DATA") or of_checkout("data"))


def sha256_of_files(files: Iterable[Path]) -> str:
    """One SHA-256 over names and contents of ``files``, taken in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(os.fsencode(file.name) + b"\0")
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)  # goes on from its state
    return digest.hexdigest()


def sha256_of(file: Path) -> str:
    """SHA-256 over the content of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_lines(lines: Iterable[str]) -> str:
    """SHA-256 over lines of text, whose file names need not be UTF-8."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the SHA-256 of files of ``folder``, by name, to its ``SHA256SUMS``."""
    write_atomically(folder / SUMS, "".join(f"{sums[name]}  {name}\n" for name in sums))


def check_sums(folder: Path, remedy: str, names: Iterable[str] | None = None) -> None:
    """Compare the files of a folder with its ``SHA256SUMS``; 1 s for each GB.

    ``names`` are the files that must be listed, and no others; None for any. ``remedy`` ends the
    message about a sum that is missing or wrong.
    """
    sums = folder / SUMS
    if not sums.is_file():
        raise UserError(f"{sums}: there is no such file; give a folder that an export wrote")
    lines = sums.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}

    def damaged(reason: str) -> UserError:
        return UserError(f"{folder}: damaged or edited ({reason}); {remedy}")

    if names is not None and (other := known.keys() ^ set(names)):
        raise damaged(f"{SUMS} does not list {', '.join(sorted(other))}")
    for name, digest in known.items():
        if not (folder / name).is_file():
            raise damaged(f"{name} is missing")
        if sha256_of(folder / name) != digest:
            raise damaged(f"the SHA-256 of {name} is not the one in {SUMS}")


def short_hash(key: Mapping[str, Any]) -> str:
    """Ten digits that identify a key, to name the folder of what is prepared for it."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10]


def write_meta(folder: Path, meta: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write ``meta.json``, then the sums of the files of a prepared folder, itself among them."""
    write_atomically(folder / META, json.dumps(meta, indent=2) + "\n")
    write_sums(folder, {name: sha256_of(folder / name) for name in names})


def read_meta(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """The content of ``meta.json``, once all files of a prepared folder have been checked."""
    check_sums(folder, made_again(folder), names)
    meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    return meta


def cached_until_changed(stamp: Path, files: Iterable[Path], compute: Callable[[], str]) -> str:
    """The result of ``compute``, cached in the file ``stamp`` until one of ``files`` changes.

    A change is one of order, names, sizes or times of modification. In a read-only folder nothing
    is cached.
    """
    state = state_of(files)
    with contextlib.suppress(OSError, ValueError):
        known, result, check = stamp.read_text().split()
        if known == state and check == sha256_of_lines([state, result]):
            return result
    result = compute()
    with contextlib.suppress(OSError):
        write_atomically(stamp, f"{state}\n{result}\n{sha256_of_lines([state, result])}\n")
    return result


def state_of(files: Iterable[Path]) -> str:
    """SHA-256 over order, names, sizes and times of modification of files, missing or not."""

    def state(file: Path) -> str:
        try:
            status = file.stat()
        except OSError:
            return "missing"
        return f"{status.st_size} {status.st_mtime_ns}"

    return sha256_of_lines(f"{file.parent.name}/{file.name} {state(file)}" for file in files)


def fetch_archive(name: str, url: str, folder: Path, sha256: str | None) -> None:
    """Download an archive into ``folder`` and unpack it there, completely or not at all.

    An existing archive with the right checksum is used; the archive is kept. One process at a time
    fetches it, and deletes what killed ones have left of it. ``name`` is that of the dataset, and
    ``sha256`` None where none is published.
    """
    archive = folder / url.rpartition("/")[2]
    part = folder / f".{archive.name}.unpacked"
    lock = FileLock(folder / f".{archive.name}.lock")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            text = f"another process is fetching {archive}; run the same command when it has ended"
            raise UserError(f"{name}: {text}") from None
    wrong = ""
    try:
        for left in folder.glob(f".{archive.name}.*.part"):  # of a process that was killed
            left.unlink()
        if archive.is_file() and sha256 is not None and (digest := sha256_of(archive)) != sha256:
            wrong = f"; the existing {archive} has the SHA-256 {digest}, not {sha256}"
        if not archive.is_file() or wrong:
            _download(url, archive, sha256)
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        _unpack(archive, part, LARGEST_UNKNOWN if sha256 is None else None)
        for path in part.iterdir():
            path.replace(folder / path.name)
    # The exception depends on the transport and on the archive.
    except Exception as error:
        by_hand = f"; without a network, put the file into {folder} and run the same command"
        offline = by_hand if type(error) is URLError else ""  # no answer; an HTTPError is an answer
        again = f"; delete {archive} to fetch it again" if archive.is_file() and not wrong else ""
        failed = f"fetching {url} into {folder} failed: {first_line(error)}{wrong}{again}{offline}"
        raise UserError(f"{name}: {failed}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)  # no process waits for it
        lock.release()


def _download(url: str, file: Path, sha256: str | None) -> None:
    accepted: tuple[str, ...] = ("https://",)
    if mirror := os.environ.get(MIRROR):
        url, accepted = f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}", ("https://", "file://")
    if not url.startswith(accepted):
        raise ValueError(f"only https is accepted{', and file' * bool(mirror)}")
    with urlopen(url, timeout=TIMEOUT) as response, replacing(file) as part:
        if not response.url.startswith(accepted):
            raise ValueError(f"only https is accepted, it redirects to {response.url}")
        with part.open("wb") as stream:
            shutil.copyfileobj(response, stream, 1 << 20)
        if sha256 is not None and (digest := sha256_of(part)) != sha256:
            raise ValueError(f"its SHA-256 is {digest}, not {sha256}")


def _unpack(archive: Path, folder: Path, largest: int | None) -> None:
    """Unpack an archive, of at most ``largest`` bytes in all."""
    folder.mkdir()
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            size = sum(member.file_size for member in members.infolist())  # no more is read
            if largest is not None and size > largest:
                raise ValueError(f"it unpacks to {size:,} bytes, and {largest:,} are allowed")
            members.extractall(folder)  # drops what in a name would lead out
    else:
        with tarfile.open(archive) as members:
            for member in members:  # extractall is safe only from Python 3.11.4 on
                target = folder / member.name
                if not target.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"its member {member.name!r} leads out of the folder")
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                content = members.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ValueError(f"its member {member.name!r} is neither a file nor a folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as stream:
                    shutil.copyfileobj(content, stream, 1 << 20)


@contextlib.contextmanager
def writing(target: Path, remedy: str = ROOM) -> Iterator[None]:
    """Turn an OSError into an error that says what could not be written, and the remedy."""
    try:
        yield
    except OSError as error:
        text = f"cannot be written ({error.strerror or error}); {remedy}"
        raise UserError(f"{target}: {text}") from None


def build_once(
    folder: Path,
    build: Callable[[Path], None],
    last: Sequence[str] = (META, SUMS),
    *,
    whole: Callable[[Path], bool] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> None:
    """Have ``build`` fill a folder, unless it is complete; wait if another process is filling it.

    It is filled under another name and moved in one step; leftovers of killed processes are
    deleted. The files ``last`` make a folder complete; one that is not ``whole`` is built again.
    ``waiting`` is called every second while another process is at work on it.
    """

    def is_built() -> bool:
        complete = all((folder / name).is_file() for name in last)
        return complete and (whole is None or whole(folder))

    if is_built():
        return
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.parent / f".{folder.name}.lock")
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=1)
                except Timeout:
                    waiting()
            stack.callback(lock.release)
        if is_built():
            return
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        with writing(folder):
            part.mkdir()
        build(part)
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)  # one that is not complete
            part.rename(folder)


def check_prepared(folders: Path, pattern: str) -> None:
    """Check the sums of the prepared folders in ``folders`` whose names match ``pattern``."""
    for sums in sorted(folders.glob(f"{pattern}/{SUMS}")):
        check_sums(sums.parent, made_again(sums.parent))


def made_again(folder: Path) -> str:
    """The remedy for a damaged prepared folder."""
    return f"delete {folder}, to have it made again"
