"""What ``rl`` offers: names, and the modules they are imported from when first used."""

from .agent import Agent as Agent
from .agent import Contrast as Contrast
from .config import TASKS as TASKS
from .config import Config as Config
from .config import ProbeConfig as ProbeConfig
from .data import Frames as Frames
from .data import random_frames as random_frames
from .domain import DOMAIN as DOMAIN
from .encoder import Bilinear as Bilinear
from .encoder import Encoder as Encoder
from .environment import DeepMindControl as DeepMindControl
from .environment import Environment as Environment
from .environment import make_vector as make_vector
from .evaluation import PROTOCOLS as PROTOCOLS
from .evaluation import evaluate_policy as evaluate_policy
from .evaluation import state_probe as state_probe
from .own import pretrain as pretrain
from .own import train_agent as train_agent
from .replay import Batch as Batch
from .replay import Replay as Replay
from .tables import TABLES as TABLES
from .train import measure as measure
