"""What ``graph`` offers: names, and the modules they are imported from when first used."""

from .config import Config as Config
from .data import Graphs as Graphs
from .data import batches as batches
from .data import load as load
from .domain import DOMAIN as DOMAIN
from .encoder import Encoder as Encoder
from .encoder import ProjectionHead as ProjectionHead
from .evaluation import embed as embed
from .evaluation import svm_ten_fold as svm_ten_fold
from .tables import TABLES as TABLES
from .train import measure as measure
