"""What ``text`` offers: names, and the modules they are imported from when first used."""

from .config import TASKS as TASKS
from .config import Config as Config
from .data import LAYOUTS as LAYOUTS
from .data import Task as Task
from .data import load_task as load_task
from .data import sentences as sentences
from .domain import DOMAIN as DOMAIN
from .encoder import Encode as Encode
from .encoder import QuickThought as QuickThought
from .encoder import QuickThoughtConfig as QuickThoughtConfig
from .encoder import sentence_encoder as sentence_encoder
from .evaluation import PROTOCOLS as PROTOCOLS
from .evaluation import evaluate as evaluate
from .evaluation import majority as majority
from .evaluation import tfidf as tfidf
from .saved import hugging_face_encoder as hugging_face_encoder
from .sts import STS_TASKS as STS_TASKS
from .sts import evaluate_sts as evaluate_sts
from .tables import TABLES as TABLES
from .tokens import Batch as Batch
from .tokens import Tokens as Tokens
from .tokens import make_tokenizer as make_tokenizer
from .tokens import prepare as prepare
from .train import measure as measure
