import os
from pathlib import Path

import pytest
import torch

# The tests' matrices are small: a second thread would only wait, badly so on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def suite_data() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    folder = os.environ.get("SUITE_DATA")
    if not folder:
        pytest.skip("needs real data: set SUITE_DATA to the folder that holds them")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"needs real data: SUITE_DATA={folder} is no folder")
    return path
