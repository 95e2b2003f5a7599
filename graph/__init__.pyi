"""What ``graph`` offers: names, and the modules they are imported from when first used."""

from .config import Config as Config
from .data import Graphs as Graphs
from .data import batches as batches
from .data import load as load
from .domain import DOMAIN as DOMAIN
from .encoder import Encoder as Encoder
from .encoder import Pooled as Pooled
from .encoder import ProjectionHead as ProjectionHead
from .evaluation import embed as embed
from .evaluation import logistic_ten_fold as logistic_ten_fold
from .evaluation import svm_ten_fold as svm_ten_fold
from .export import load_encoder as load_encoder
from .export import save_encoder as save_encoder
from .own import from_pyg as from_pyg
from .tables import TABLES as TABLES
from .train import measure as measure
from .train import pretrain as pretrain
