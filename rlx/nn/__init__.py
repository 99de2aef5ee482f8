"""Networks, distributions and optimizers that all learners share, built for small networks on few cores."""

from rlx.nn.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from rlx.nn.fused import SquashedSample, gaussian, noise_like, plain_mlp, squashed_sample
from rlx.nn.heads import (
    ActionHead,
    BoundedGaussian,
    Critic,
    Deterministic,
    DiscreteHead,
    SquashedGaussian,
    first_log_std,
)
from rlx.nn.mlp import MLP, Perceptron, initialize
from rlx.nn.norm import OBS_CLIP, RenormMLP, running_moments
from rlx.nn.optim import Adam, AdamW, Optimizer, RMSprop, polyak, target_of
from rlx.nn.vae import VAE, by_blocks, vae_loss

__all__ = [
    "MLP", "OBS_CLIP", "VAE", "ActionHead", "Adam", "AdamW", "BoundedGaussian", "Categorical", "Critic",
    "Deterministic", "DiagGaussian", "DiscreteHead", "Distribution", "MultiCategorical", "Optimizer", "Perceptron",
    "RMSprop", "RenormMLP", "SquashedGaussian", "SquashedSample", "by_blocks", "first_log_std", "gaussian",
    "initialize", "noise_like", "plain_mlp", "polyak", "running_moments", "squashed_sample", "target_of", "vae_loss",
]  # fmt: skip
