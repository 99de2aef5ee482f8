"""Environments: from an id to a Spec, to vector envs that reset from seeds of their own, to an exact resume."""

from gymnasium.envs.registration import register, registry

from rlx.envs.factory import EnvConfig, make_env, make_vector_env, probe, spec_of

if "rlx/PointGoal-v0" not in registry:
    register("rlx/PointGoal-v0", entry_point="rlx.envs.point_goal:PointGoal", max_episode_steps=50)
    register("rlx/Recall-v0", entry_point="rlx.envs.memory:Recall")
    register("rlx/CartPoleHidden-v0", entry_point="rlx.envs.memory:CartPoleHidden", max_episode_steps=500)

__all__ = ["EnvConfig", "make_env", "make_vector_env", "probe", "spec_of"]
