"""What ``shared`` offers: names, and the modules they are imported from when first used."""

from . import checks as checks
from . import distributed as distributed
from . import logistic as logistic
from . import losses as losses
from . import margins as margins
from . import momentum as momentum
from . import objective as objective
from . import pairs as pairs
from . import penalties as penalties
from . import projection as projection
from . import svm as svm
from .checks import Temperature as Temperature
from .losses import alignment as alignment
from .losses import debiased_nce as debiased_nce
from .losses import hard_nce as hard_nce
from .losses import info_nce as info_nce
from .losses import margin_nce as margin_nce
from .losses import max_margin as max_margin
from .margins import angular_margin as angular_margin
from .margins import attenuation_weight as attenuation_weight
from .margins import curvature_weight as curvature_weight
from .margins import margin_ratio as margin_ratio
from .margins import scale_gradient as scale_gradient
from .margins import subtractive_margin as subtractive_margin
from .momentum import Teacher as Teacher
from .momentum import enqueue as enqueue
from .momentum import follow as follow
from .momentum import random_bank as random_bank
from .objective import Criterion as Criterion
from .objective import Objective as Objective
from .objective import Projection as Projection
from .objective import Term as Term
from .objective import term as term
from .pairs import Pairs as Pairs
from .pairs import context_window as context_window
from .pairs import cosine as cosine
from .pairs import inner_product as inner_product
from .pairs import local_global as local_global
from .pairs import query_key as query_key
from .pairs import same_label as same_label
from .pairs import two_views as two_views
from .penalties import band_statistics as band_statistics
from .penalties import distance_polarization as distance_polarization
from .projection import LowRankProjection as LowRankProjection

__version__: str
