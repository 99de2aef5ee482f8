"""Networks, distributions and optimizers that all learners share, built for small networks on few cores."""

from rlx.nn.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from rlx.nn.fused import (
    SquashedSample,
    chosen,
    clipped_surrogate,
    dueling,
    gaussian,
    huber_loss,
    noise_like,
    plain_mlp,
    recorded,
    small_mlp,
    squashed_sample,
    value_error,
    weighted_sum,
)
from rlx.nn.heads import (
    ActionHead,
    ActionValues,
    BoundedGaussian,
    ChoiceCritic,
    Critic,
    Deterministic,
    DiscreteHead,
    SquashedGaussian,
    StateValue,
    first_log_std,
)
from rlx.nn.mlp import MLP, initialize
from rlx.nn.norm import OBS_CLIP, RenormMLP, running_moments
from rlx.nn.optim import Adam, AdamW, Optimizer, RAdam, RMSprop, polyak, target_of
from rlx.nn.vae import VAE, by_blocks, vae_loss

__all__ = [
    "MLP", "OBS_CLIP", "VAE", "ActionHead", "ActionValues", "Adam", "AdamW", "BoundedGaussian", "Categorical",
    "ChoiceCritic", "Critic", "Deterministic", "DiagGaussian", "DiscreteHead", "Distribution", "MultiCategorical",
    "Optimizer", "RAdam", "RMSprop", "RenormMLP", "SquashedGaussian", "SquashedSample", "StateValue", "by_blocks",
    "chosen", "clipped_surrogate", "dueling", "first_log_std", "gaussian", "huber_loss", "initialize", "noise_like",
    "plain_mlp", "polyak", "recorded", "running_moments", "small_mlp", "squashed_sample", "target_of", "vae_loss",
    "value_error", "weighted_sum",
]  # fmt: skip
