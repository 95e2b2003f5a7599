"""What ``vision`` offers: names, and the modules they are imported from when first used."""

from .augmentation import POLICIES as POLICIES
from .augmentation import Policy as Policy
from .config import Config as Config
from .config import ToyConfig as ToyConfig
from .data import choose as choose
from .data import load as load
from .domain import DOMAIN as DOMAIN
from .encoder import head as head
from .evaluation import kmeans_accuracy as kmeans_accuracy
from .evaluation import knn as knn
from .evaluation import linear_probe as linear_probe
from .export import load_encoder as load_encoder
from .export import save_encoder as save_encoder
from .features import embed as embed
from .hub import hub_images as hub_images
from .images import ImageFiles as ImageFiles
from .images import Images as Images
from .methods import networks_of as networks_of
from .own import folder as folder
from .tables import TABLES as TABLES
from .train import measure as measure
from .train import pretrain as pretrain
