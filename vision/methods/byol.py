"""BYOL: MoCo v3 with a loss that has no negatives (Grill et al. 2020)."""

from vision.methods.moco import MoCoV3


class BYOL(MoCoV3):
    """It differs from MoCo v3 in the loss alone."""

    loss = ("alignment", "it has no negatives, and the method keeps it from collapse")
