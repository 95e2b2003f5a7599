"""Lets torchvision import beside a CPU build of torch, and pytorchvideo beside today's torchvision.

The wheels of torchvision on the Python Package Index are CUDA builds. Beside a CPU build of torch
their compiled operators cannot be loaded, and importing torchvision (or whatever imports it:
transformers, lightly) stops at ``operator torchvision::nms does not exist``. Transforms, models and
most datasets need none of these operators.
"""

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path

import torch

from shared.errors import UserError

# torchvision describes these two to torch.compile when it is imported, whether or not its
# operators could be loaded; only there must something carry their names.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # the names are gone when the library object is


def make_torchvision_importable() -> None:
    """Declare the operators that importing torchvision asks for, where its own do not load.

    To be called before the first import of torchvision; does nothing where torchvision works as it
    is, or is not installed. The operators themselves (``torchvision.ops.nms`` and its like) and the
    image codecs of ``torchvision.io`` remain unavailable.
    """
    specification = importlib.util.find_spec("torchvision")
    if _declared or specification is None or specification.origin is None:
        return
    with contextlib.suppress(OSError):  # a CUDA build beside a CPU build of torch
        for library in Path(specification.origin).parent.glob("_C*.*"):  # 0.29 has _C_stable.so
            torch.ops.load_library(library)
        if hasattr(torch.ops.torchvision, "nms"):
            return
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        fragment.define(schema)
    _declared.append(fragment)


def make_pytorchvideo_importable() -> None:
    """Give a module of torchvision the name under which pytorchvideo's transforms look for it.

    To be called before the first import of pytorchvideo; further calls do nothing.
    """
    if importlib.util.find_spec("pytorchvideo") is None:
        raise UserError("pytorchvideo is not installed; install it with: pip install pytorchvideo")
    make_torchvision_importable()
    module = importlib.import_module("torchvision.transforms._functional_tensor")
    sys.modules.setdefault("torchvision.transforms.functional_tensor", module)
