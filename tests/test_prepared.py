"""Folders that are made once: complete or not there at all, whatever was there before."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from shared.errors import UserError
from shared.experiment.data import SUMS, build_once, check_prepared, sha256_of, write_sums, writing


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
def test_what_is_not_complete_is_built_anew(tmp_path: Path, missing: str) -> None:
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


def test_what_makes_a_folder_complete_can_be_named(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "last").touch()
    build_once(folder, lambda part: pytest.fail("it is there"), ("last",))
    assert [path.name for path in folder.iterdir()] == ["last"]


def test_errors_of_the_file_system_say_what_helps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        build_once(tmp_path / "file" / "made", build)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'file' / 'made'}: cannot be written (")
    assert message.endswith("with free space: --data-root or SUITE_DATA")
    full = OSError(28, os.strerror(28))
    with pytest.raises(UserError, match=r"x: cannot be written \(No space left .*\); make room"):
        with writing(Path("x"), "make room"):
            raise full


def test_prepared_folders_are_checked_by_their_names(tmp_path: Path) -> None:
    for name in ("made-1", "made-2", "other"):
        build_once(tmp_path / name, build)
    (tmp_path / "made-2" / "meta.json").write_text("edited")
    check_prepared(tmp_path, "made-1")
    check_prepared(tmp_path, "other*")
    with pytest.raises(
        UserError, match=r"made-2: damaged .*delete .*made-2, to have it made again"
    ):
        check_prepared(tmp_path, "made-*")
