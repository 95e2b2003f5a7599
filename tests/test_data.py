import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.response import addinfourl

import pytest

import shared.experiment.data
from shared.errors import UserError
from shared.experiment.data import (
    SUMS,
    check_sums,
    fetch_archive,
    remembered,
    sha256_of,
    write_sums,
)

SITE = "https://data.example"


def error_of(action: Callable[[], object]) -> str:
    """The one line of the user error that an action ends in."""
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def never(*arguments: object) -> str:
    raise AssertionError("must not be called")


# Sums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.bin").write_bytes(bytes(range(256)))
    (made / "b.json").write_text('{"n": 256}\n')
    write_sums(made, {name: sha256_of(made / name) for name in ("a.bin", "b.json")})
    return made


def test_sums_are_as_sha256sum_writes_them(folder: Path):
    digest = hashlib.sha256(bytes(range(256))).hexdigest()
    assert (folder / SUMS).read_text().splitlines()[0] == f"{digest}  a.bin"
    check_sums(folder, "do something", ("a.bin", "b.json"))
    check_sums(folder, "do something")


@pytest.mark.parametrize("name", ["a.bin", "b.json", SUMS])
def test_a_flipped_bit_is_seen(folder: Path, name: str):
    content = (folder / name).read_bytes()
    for place in range(0, 8 * len(content), 7):  # each of a byte's bits is among them
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (folder / name).write_bytes(damaged)
        message = error_of(lambda: check_sums(folder, "copy it", ("a.bin", "b.json")))
        assert message.startswith(f"{folder}: damaged or edited (")
        assert message.endswith("; copy it")
    (folder / name).write_bytes(content)
    check_sums(folder, "copy it")


def test_what_is_missing_or_more_is_named(folder: Path):
    message = error_of(lambda: check_sums(folder, "", ("a.bin", "c")))
    assert f"{SUMS} does not list b.json, c" in message
    (folder / "a.bin").unlink()
    assert "a.bin is missing" in error_of(lambda: check_sums(folder, ""))
    (folder / SUMS).write_text("")
    assert "is missing" in error_of(lambda: check_sums(folder, ""))
    (folder / SUMS).unlink()
    assert "there is no such file" in error_of(lambda: check_sums(folder, ""))


# What is remembered


def test_it_is_computed_again_when_a_file_or_the_stamp_has_changed(folder: Path):
    stamp, files = folder / ".verified", [folder / "a.bin", folder / "b.json"]
    assert remembered(stamp, files, lambda: "known") == "known"
    assert remembered(stamp, files, never) == "known"
    assert remembered(stamp, files[::-1], lambda: "other order") == "other order"
    os.utime(files[0], (0, 0))
    assert remembered(stamp, files, lambda: "touched") == "touched"
    files[0].unlink()
    assert remembered(stamp, files, lambda: "missing") == "missing"
    content = stamp.read_bytes()
    for place in range(0, 8 * len(content) - 8, 7):  # the last byte ends the line
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        stamp.write_bytes(damaged)
        found = remembered(stamp, files, lambda: "missing")
        assert found == "missing", "a flipped bit of what is remembered"


def test_where_one_may_only_read_it_is_computed_every_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, text: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("shared.experiment.data.write_atomically", refuse)
    files = [folder / "a.bin"]
    assert remembered(folder / ".verified", files, lambda: "one") == "one"
    assert remembered(folder / ".verified", files, lambda: "two") == "two"


# Downloads


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files can be had from ``SITE``, and nothing else can."""
    place = tmp_path / "site"
    place.mkdir()

    def open_(url: str, timeout: float) -> addinfourl:
        name = url.removeprefix(f"{SITE}/")
        if not (place / name).is_file():
            raise HTTPError(url, 404, "File not found", {}, None)  # type: ignore[arg-type]
        return addinfourl((place / name).open("rb"), {}, redirects.get(name, url))  # type: ignore[arg-type]

    redirects = {"moved.zip": "http://elsewhere.example/moved.zip"}
    monkeypatch.setattr(shared.experiment.data, "urlopen", open_)
    return place


def zipped(file: Path, *members: str) -> str:
    with zipfile.ZipFile(file, "w") as archive:
        for name in members:
            archive.writestr(name, name)
    return sha256_of(file)


def files_below(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in found}


def test_an_archive_is_fetched_once_and_unpacked(site: Path, tmp_path: Path):
    sha256 = zipped(site / "set.zip", "set/a.txt", "set/deep/b.txt")
    target = tmp_path / "data" / "here"
    fetch_archive("set", f"{SITE}/set.zip", target, sha256)
    assert files_below(target) == {"set.zip", "set/a.txt", "set/deep/b.txt"}
    shutil.rmtree(target / "set")
    (site / "set.zip").unlink()
    fetch_archive("set", f"{SITE}/set.zip", target, sha256)  # the archive lies there
    assert (target / "set" / "deep" / "b.txt").read_text() == "set/deep/b.txt"


def test_a_tar_file_is_unpacked_too(site: Path, tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("a")
    with tarfile.open(site / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    fetch_archive("s", f"{SITE}/set.tar.gz", tmp_path / "data", sha256_of(site / "set.tar.gz"))
    assert files_below(tmp_path / "data") == {"set.tar.gz", "set/a.txt"}


def test_another_checksum_leaves_nothing(site: Path, tmp_path: Path):
    sha256 = zipped(site / "set.zip", "set/a.txt")
    zipped(site / "set.zip", "set/b.txt")
    message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", tmp_path / "d", sha256))
    assert message.startswith(f"set: download from {SITE}/set.zip failed: its SHA-256 is ")
    assert message.endswith(f", not {sha256}")
    assert not files_below(tmp_path / "d")


def test_an_archive_that_lies_there_with_another_checksum_is_fetched_again(
    site: Path, tmp_path: Path
):
    sha256 = zipped(site / "set.zip", "set/a.txt")
    zipped(tmp_path / "set.zip", "set/evil.txt")
    fetch_archive("set", f"{SITE}/set.zip", tmp_path, sha256)
    assert files_below(tmp_path / "set") == {"a.txt"}


def test_http_is_refused_also_where_https_leads_to_it(site: Path, tmp_path: Path):
    sha256 = zipped(site / "moved.zip", "set/a.txt")
    for url in ("http://data.example/moved.zip", "ftp://data.example/a", "file:///etc/passwd"):
        message = error_of(lambda url=url: fetch_archive("set", url, tmp_path / "d", sha256))
        assert message == f"set: download from {url} failed: only https is accepted"
    message = error_of(lambda: fetch_archive("set", f"{SITE}/moved.zip", tmp_path / "d", sha256))
    assert message.endswith(
        "only https is accepted, it redirects to http://elsewhere.example/moved.zip"
    )
    assert not files_below(tmp_path / "d")


def test_a_failed_download_is_one_line(site: Path, tmp_path: Path):
    message = error_of(lambda: fetch_archive("set", f"{SITE}/no.zip", tmp_path / "d", "0"))
    assert message == f"set: download from {SITE}/no.zip failed: HTTP Error 404: File not found"
    (site / "torn.zip").write_bytes(b"no archive")
    message = error_of(lambda: fetch_archive("set", f"{SITE}/torn.zip", tmp_path / "d", None))
    assert "failed: " in message


@pytest.mark.parametrize("member", ["../evil", "set/../../evil", "/evil"])
def test_a_zip_file_that_leads_out_is_unpacked_within(site: Path, tmp_path: Path, member: str):
    sha256 = zipped(site / "set.zip", "set/a.txt", member)
    fetch_archive("set", f"{SITE}/set.zip", tmp_path / "d", sha256)
    assert files_below(tmp_path) - {"d/evil", "d/set/evil", "d/set/a.txt"} == {
        "site/set.zip",
        "d/set.zip",
    }


@pytest.mark.parametrize("kind", ["parent", "link", "device"])
def test_a_tar_file_that_leads_out_is_not_unpacked(site: Path, tmp_path: Path, kind: str):
    member = tarfile.TarInfo("../evil" if kind == "parent" else "evil")
    if kind != "parent":
        links = {"link": tarfile.SYMTYPE, "device": tarfile.CHRTYPE}
        member.type, member.linkname = links[kind], "../../../outside"
    with tarfile.open(site / "set.tar.gz", "w:gz") as archive:
        good = tarfile.TarInfo("set/a.txt")
        good.size = 1
        archive.addfile(good, io.BytesIO(b"a"))
        archive.addfile(member)
    sha256 = sha256_of(site / "set.tar.gz")
    message = error_of(lambda: fetch_archive("s", f"{SITE}/set.tar.gz", tmp_path / "d", sha256))
    assert "failed: " in message
    assert files_below(tmp_path) == {"site/set.tar.gz", "d/set.tar.gz"}
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
