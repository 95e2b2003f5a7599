"""What ``video`` offers: names, and the modules they are imported from when first used."""

from .config import Config as Config
from .data import Video as Video
from .data import Videos as Videos
from .data import load as load
from .domain import DOMAIN as DOMAIN
from .encoder import S3D as S3D
from .encoder import Networks as Networks
from .evaluation import PROTOCOLS as PROTOCOLS
from .own import folder as folder
from .own import from_pytorchvideo as from_pytorchvideo
from .tables import TABLES as TABLES
from .train import measure as measure
from .train import pretrain as pretrain
