"""Click-through-rate models: plain modules over dense features, embeddings and a first-order sum.

``build_model`` gives the whole model of a name: the tables and the network over them.
"""

from stampede.training.models.autoint import AutoInt
from stampede.training.models.build import MODELS, build_model
from stampede.training.models.ctr import CTRModel
from stampede.training.models.dcn import DCN
from stampede.training.models.dcn_v2 import DCNv2
from stampede.training.models.dcn_v2_mix import DCNv2Mix
from stampede.training.models.deepfm import DeepFM
from stampede.training.models.dlrm import DLRM
from stampede.training.models.finalnet import FinalNet
from stampede.training.models.fm import FM
from stampede.training.models.network import Network, NetworkOptions
from stampede.training.models.wide_deep import WideDeep
from stampede.training.models.xdeepfm import XDeepFM

__all__ = [
    "DCN",
    "DLRM",
    "FM",
    "MODELS",
    "AutoInt",
    "CTRModel",
    "DCNv2",
    "DCNv2Mix",
    "DeepFM",
    "FinalNet",
    "Network",
    "NetworkOptions",
    "WideDeep",
    "XDeepFM",
    "build_model",
]
