"""Environments: from an id to a Spec, to vector envs that reset from seeds of their own, to an exact resume."""

from gymnasium.envs.registration import register, registry

from rlx.envs.factory import EnvConfig, for_training, make_env, make_vector_env, probe, spec_of

SHIPPED = {  # id: entry point, steps of an episode
    "rlx/CartPoleHidden-v0": ("rlx.envs.memory:CartPoleHidden", 500),
    "rlx/PointGoal-v0": ("rlx.envs.point_goal:PointGoal", 50),
    "rlx/PixelGoal-v0": ("rlx.envs.pixel_goal:PixelGoal", 32),
    "rlx/PixelMemory-v0": ("rlx.envs.pixel_goal:PixelMemory", 32),
    "rlx/PixelState-v0": ("rlx.envs.pixel_goal:PixelState", 32),
    "rlx/Recall-v0": ("rlx.envs.memory:Recall", None),
}
for env_id, (entry_point, steps) in SHIPPED.items():
    if env_id not in registry:
        register(env_id, entry_point=entry_point, max_episode_steps=steps)

__all__ = ["EnvConfig", "for_training", "make_env", "make_vector_env", "probe", "spec_of"]
