"""What is kept in folders of data: sums, downloads, and folders that are made once."""

import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.response import addinfourl

import pytest
from filelock import FileLock

import shared.experiment.data
from shared.errors import UserError
from shared.experiment.data import (
    SUMS,
    build_once,
    cached_until_changed,
    check_prepared,
    check_sums,
    fetch_archive,
    sha256_of,
    write_sums,
    writing,
)
from tests.stages.errors import error_of

SITE = "https://data.example"


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
        assert message.startswith(f"{folder}: damaged or edited")
    (folder / name).write_bytes(content)
    check_sums(folder, "copy it")


def test_files_missing_from_or_unknown_to_the_sums_are_named(folder: Path):
    assert "b.json, c" in error_of(lambda: check_sums(folder, "", ("a.bin", "c")))
    (folder / "a.bin").unlink()
    assert "a.bin" in error_of(lambda: check_sums(folder, ""))
    (folder / SUMS).write_text("")
    error_of(lambda: check_sums(folder, ""))
    (folder / SUMS).unlink()
    assert SUMS in error_of(lambda: check_sums(folder, ""))


# What is cached_until_changed


def test_it_is_computed_again_when_a_file_or_the_stamp_has_changed(folder: Path):
    stamp, files = folder / ".verified", [folder / "a.bin", folder / "b.json"]
    assert cached_until_changed(stamp, files, lambda: "known") == "known"
    assert cached_until_changed(stamp, files, never) == "known"
    assert cached_until_changed(stamp, files[::-1], lambda: "other order") == "other order"
    os.utime(files[0], (0, 0))
    assert cached_until_changed(stamp, files, lambda: "touched") == "touched"
    files[0].unlink()
    assert cached_until_changed(stamp, files, lambda: "missing") == "missing"
    content = stamp.read_bytes()
    for place in range(0, 8 * len(content) - 8, 7):  # the last byte ends the line
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        stamp.write_bytes(damaged)
        found = cached_until_changed(stamp, files, lambda: "missing")
        assert found == "missing", "a flipped bit of what is remembered"


def test_where_one_may_only_read_it_is_computed_every_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, text: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("shared.experiment.data.write_atomically", refuse)
    files = [folder / "a.bin"]
    assert cached_until_changed(folder / ".verified", files, lambda: "one") == "one"
    assert cached_until_changed(folder / ".verified", files, lambda: "two") == "two"


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


def test_another_address_gives_the_same_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "mirror"
    place.mkdir()
    sha256 = zipped(place / "set.zip", "set/a.txt")
    monkeypatch.setenv("SUITE_MIRROR", place.as_uri())
    fetch_archive("set", f"{SITE}/deeper/set.zip", tmp_path / "d", sha256)
    assert files_below(tmp_path / "d") == {"set.zip", "set/a.txt"}
    # What an interrupted transfer has left there is no archive.
    (place / "set.zip").write_bytes((place / "set.zip").read_bytes()[:-9])
    message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", tmp_path / "e", sha256))
    assert "SHA-256" in message
    assert files_below(tmp_path / "e") == set()
    monkeypatch.setenv("SUITE_MIRROR", "http://elsewhere.example")
    message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", tmp_path / "e", sha256))
    assert "https" in message


def test_the_unpacked_size_of_an_unknown_archive_is_limited(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    zipped(site / "set.zip", "a" * 60, "b" * 60)
    monkeypatch.setattr(shared.experiment.data, "LARGEST_UNKNOWN", 100)
    message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", tmp_path / "d", None))
    assert "120 bytes" in message
    assert files_below(tmp_path / "d") == {"set.zip"}


def files_below(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_an_archive_is_fetched_once_and_unpacked(site: Path, tmp_path: Path):
    sha256 = zipped(site / "set.zip", "set/a.txt", "set/deep/b.txt")
    target = tmp_path / "data" / "here"
    target.mkdir(parents=True)
    (target / ".set.zip.1234.part").write_bytes(b"a half")  # of a download that was killed
    fetch_archive("set", f"{SITE}/set.zip", target, sha256)
    assert files_below(target) == {"set.zip", "set/a.txt", "set/deep/b.txt"}
    shutil.rmtree(target / "set")
    (site / "set.zip").unlink()
    fetch_archive("set", f"{SITE}/set.zip", target, sha256)  # the archive lies there
    assert (target / "set" / "deep" / "b.txt").read_text() == "set/deep/b.txt"


def test_a_download_of_another_process_is_left_alone(site: Path, tmp_path: Path):
    sha256 = zipped(site / "set.zip", "set/a.txt")
    (tmp_path / "d" / ".set.zip.unpacked").mkdir(parents=True)
    (tmp_path / "d" / ".set.zip.unpacked" / "a.txt").write_text("a")
    (tmp_path / "d" / ".set.zip.1234.part").write_bytes(b"a half")
    before = files_below(tmp_path / "d")
    with FileLock(tmp_path / "d" / ".set.zip.lock"):
        message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", tmp_path / "d", sha256))
    assert "another process" in message
    assert files_below(tmp_path / "d") == before | {".set.zip.lock"}


def test_a_tar_file_is_unpacked_too(site: Path, tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.txt").write_text("a")
    with tarfile.open(site / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    fetch_archive("s", f"{SITE}/set.tar.gz", tmp_path / "data", sha256_of(site / "set.tar.gz"))
    assert files_below(tmp_path / "data") == {"set.tar.gz", "set/a.txt"}


def test_another_checksum_leaves_nothing_and_an_archive_that_has_one_is_fetched_again(
    site: Path, tmp_path: Path
):
    target = tmp_path / "d"
    sha256 = zipped(site / "set.zip", "set/a.txt")
    good = (site / "set.zip").read_bytes()
    zipped(site / "set.zip", "set/b.txt")
    message = error_of(lambda: fetch_archive("set", f"{SITE}/set.zip", target, sha256))
    assert sha256 in message
    assert not files_below(target)
    zipped(target / "set.zip", "set/evil.txt")
    (site / "set.zip").write_bytes(good)
    fetch_archive("set", f"{SITE}/set.zip", target, sha256)
    assert files_below(target / "set") == {"a.txt"}


def test_http_is_refused_also_where_https_leads_to_it(site: Path, tmp_path: Path):
    sha256 = zipped(site / "moved.zip", "set/a.txt")
    for url in (
        *("http://data.example/moved.zip", "ftp://data.example/a", "file:///etc/passwd"),
        f"{SITE}/moved.zip",
    ):
        message = error_of(lambda url=url: fetch_archive("set", url, tmp_path / "d", sha256))
        assert "only https" in message
    assert not files_below(tmp_path / "d")


def test_a_failed_download_is_one_line(site: Path, tmp_path: Path):
    (site / "torn.zip").write_bytes(b"no archive")
    (tmp_path / "file").touch()
    for name, word in (("no.zip", "404"), ("torn.zip", "delete")):
        message = error_of(lambda n=name: fetch_archive("set", f"{SITE}/{n}", tmp_path, None))
        assert word in message
    message = error_of(lambda: fetch_archive("set", f"{SITE}/a", tmp_path / "file/one", None))
    assert "--data-root" in message


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


# Folders that are made once: complete or not there at all, whatever was there before


def build(part: Path, text: str = "{}") -> None:
    (part / "meta.json").write_text(text)
    write_sums(part, {"meta.json": sha256_of(part / "meta.json")})


def test_a_folder_is_built_once_and_moved_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "made"
    seen = []

    def watched(part: Path) -> None:
        seen.append(part)
        assert not folder.exists()
        assert part.parent == folder.parent
        build(part)

    build_once(folder, watched)
    build_once(folder, watched)
    assert len(seen) == 1
    assert {path.name for path in folder.iterdir()} == {"meta.json", SUMS}
    assert not seen[0].exists()


@pytest.mark.parametrize("missing", ["meta.json", SUMS])
def test_an_incomplete_folder_is_built_anew(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "made"
    build_once(folder, lambda part: build(part, "1"))
    (folder / missing).unlink()
    (folder / "left.bin").touch()
    killed = tmp_path / ".made.part"
    killed.mkdir()
    (killed / "half").touch()
    build_once(folder, lambda part: build(part, "2"))
    assert json.loads((folder / "meta.json").read_text()) == 2
    assert {path.name for path in folder.iterdir()} == {"meta.json", SUMS}


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(part: Path) -> None:
        build(part)
        raise ValueError("no such text")

    with pytest.raises(ValueError, match="no such text"):
        build_once(tmp_path / "made", fails)
    assert {path.name for path in tmp_path.iterdir()} <= {".made.lock"}


def test_of_several_at_once_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    built = []

    def slowly(part: Path) -> None:
        built.append(part)
        time.sleep(0.2)
        build(part)

    threads = [
        threading.Thread(target=build_once, args=(tmp_path / "made", slowly)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"meta.json", SUMS}


def test_errors_of_the_file_system_say_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--data-root" in error_of(lambda: build_once(tmp_path / "file" / "made", build))
    with pytest.raises(UserError, match="make room"), writing(Path("x"), "make room"):
        raise OSError(28, os.strerror(28))


def test_prepared_folders_are_checked_by_their_names(tmp_path: Path) -> None:
    for name in ("made-1", "made-2", "other"):
        build_once(tmp_path / name, build)
    (tmp_path / "made-2" / "meta.json").write_text("edited")
    check_prepared(tmp_path, "made-1")
    check_prepared(tmp_path, "other*")
    with pytest.raises(UserError, match=r"made-2: damaged .*delete .*made-2"):
        check_prepared(tmp_path, "made-*")
