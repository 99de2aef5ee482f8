"""The local collector: what it gives back, what its actor remembers, and where it is after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import resumed, rows, same_run, signalled, snapshots, tiny
from toys import BOXES, SPEC, ToyEnvs, ToyLearner

import rlx
from rlx.agent import LearnerAgent
from rlx.callbacks import refuse_memory
from rlx.collectors import LocalCollector, LocalConfig
from rlx.collectors.base import RANDOM_STEPS
from rlx.envs.evaluation import run_episodes
from rlx.envs.vector import LIFE_LOST
from rlx.errors import UserError
from rlx.policy import Policy
from rlx.rewards import RewardConfig, RewardTransform


def collector(*lengths: int, memory: bool = True, boxes: bool = False, explore: bool = True, **reward: Any) -> Any:
    learner = ToyLearner(memory, BOXES if boxes else SPEC)
    transform = RewardTransform(RewardConfig(**reward))
    return LocalCollector(
        LocalConfig(explore=explore), learner, lambda: ToyEnvs(*lengths, boxes=boxes), transform, seed=0
    )


def place(obs: Any) -> np.ndarray:
    """(seed, steps so far) of each lane."""
    return np.array(obs["place"] if isinstance(obs, dict) else obs)


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boxes", [False, True])
def test_what_a_collector_gives_back(boxes: bool) -> None:
    one = collector(2, 3, boxes=boxes, scale=10.0)
    steps = [one.collect(100) for _ in range(3)]
    assert [place(s.obs)[:, 1].tolist() for s in steps] == [[0, 0], [1, 1], [0, 2]]
    assert [s.action[:, 0].tolist() for s in steps] == [[-1, -1], [0, 0], [-1, 1]]
    assert [s.reward.tolist() for s in steps] == [[-10, 0], [0, 10], [-10, 20]]
    assert [s.terminated.tolist() for s in steps] == [[False, False], [True, False], [False, True]]
    assert [[(e.ret, e.length) for e in s.episodes] for s in steps] == [[], [(-1.0, 2)], [(3.0, 3)]]
    assert place(one._runner.obs)[:, 1].tolist() == [1, 0]


def test_random_steps_end_and_the_policy_is_counted_from_then_on() -> None:
    one = collector(4, 4, memory=False)
    one.load(dict, 0, {RANDOM_STEPS: 5})
    taken = [one.collect(1) for _ in range(5)]
    assert one.learner.explored == 4  # of two envs; 6 of 10 steps were random
    assert taken[3].action[:, 0].tolist() == [-1, -1]
    still = collector(4, 4, memory=False, explore=False)
    still.collect(1)
    assert still.learner.explored == 0


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_carry_follows_each_lane_and_starts_anew_with_its_episode() -> None:
    one = collector(2, 3, 5, scale=10.0)
    before = np.zeros(3)
    for _ in range(20):
        steps = one.collect(1)
        at, earned = steps.carry
        assert at.tolist() == place(steps.obs)[:, 1].tolist()
        np.testing.assert_allclose(earned[:, 0], before)  # in the env's units, whatever the reward transform is
        before = np.where(steps.terminated, 0.0, before + steps.reward / 10.0)


def test_random_steps_leave_the_carry_alone() -> None:
    one = collector(3, 3)
    one.load(dict, 0, {RANDOM_STEPS: 8})
    for _ in range(4):
        assert all(not tensor.any() for tensor in one.collect(1).carry)
    assert one.collect(1).carry[0].tolist() == [0, 0]
    assert one.collect(1).carry[0].tolist() == [1, 1]


def test_a_policy_without_memory_has_no_carry() -> None:
    one = collector(2, 3, memory=False)
    assert one.collect(1).carry == ()
    assert set(one.tensors()) == {"0", "1"}


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4, 13])
def test_what_was_saved_goes_on_exactly(steps: int, boxes: bool) -> None:
    one, other = collector(2, 3, 7, boxes=boxes), collector(2, 3, 7, boxes=boxes)
    for _ in range(steps):
        one.collect(1)
    other.collect(1)  # has been elsewhere
    other.load_state(json.loads(json.dumps(one.state())))
    other.load_tensors({name: tensor.clone() for name, tensor in one.tensors().items()})
    assert list(other.lost) == []
    for _ in range(12):
        a, b = one.collect(1), other.collect(1)
        np.testing.assert_array_equal(place(a.obs), place(b.obs))
        np.testing.assert_array_equal(a.action, b.action)
        assert all(torch.equal(x, y) for x, y in zip(a.carry, b.carry, strict=True))


def test_a_lane_that_did_not_replay_starts_anew() -> None:
    one, other = collector(9, 9, 9), collector(9, 9, 9)
    for _ in range(4):
        one.collect(1)
    state = one.state()
    state["hashes"][1] = "0" * 64
    other.load_state(state)
    other.load_tensors(one.tensors())
    assert list(other.lost) == [1]
    steps = other.collect(1)
    assert steps.carry[0].tolist() == place(steps.obs)[:, 1].tolist() == [4, 0, 4]


def test_a_carry_of_another_policy_is_refused() -> None:
    one = collector(3, 3)
    tensors = one.tensors()
    for bad in (torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.full((2,), torch.nan)):
        one.load_state(one.state())
        with pytest.raises(ValueError, match="remembers"):
            one.load_tensors(tensors | {"carry.0": bad})
    with pytest.raises(ValueError, match="of 2 envs"):
        collector(3).load_state(one.state())


# -- others that act -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("boxes", [False, True])
def test_evaluation_remembers_within_episodes_only(lanes: int, boxes: bool) -> None:
    learner = ToyLearner(spec=BOXES if boxes else SPEC)
    outcome = run_episodes(LearnerAgent(learner, lanes), ToyEnvs(*[5] * lanes, boxes=boxes), 4, seed=0)
    lane = outcome.returns - (-1 + 0 + 1 - 1 + 0)  # besides the actions, lane i earns i at each step
    assert set(lane.tolist()) <= {5.0 * i for i in range(lanes)}
    assert outcome.lengths.tolist() == [5] * 4


def test_a_policy_remembers_from_call_to_call() -> None:
    policy, obs = Policy(ToyLearner()), np.zeros(2)
    assert [policy.act(obs).tolist() for _ in range(4)] == [[-1], [0], [1], [-1]]
    policy.feedback(2.5)
    assert policy._agent is not None
    assert policy._agent.carry[1].tolist() == [[2.5]]
    policy.reset()
    assert policy.act(obs).tolist() == [-1]
    with pytest.raises(UserError, match="reset"):
        policy.act(np.zeros((3, 2)))
    policy.reset()
    assert policy.act(np.zeros((3, 2))).tolist() == [[-1]] * 3
    policy.reset([1])
    assert policy.act(np.zeros((3, 2))).tolist() == [[0], [-1], [0]]


def test_a_policy_takes_observations_of_several_parts() -> None:
    policy = Policy(ToyLearner(spec=BOXES))
    one = {"place": [0.0, 1.0], "image": np.zeros((1, 2, 2))}
    assert policy.act(one).tolist() == [-1]
    assert "image" in repr(policy)
    policy.reset()
    assert policy.act({"place": np.zeros((2, 2)), "image": np.zeros((2, 1, 2, 2))}).shape == (2, 1)
    with pytest.raises(UserError, match="place, image"):
        policy.act(np.zeros(2))
    with pytest.raises(UserError, match=r"'image'.*expects"):
        policy.act({"place": np.zeros((2, 2)), "image": np.zeros((2, 3))})


def test_what_asks_about_single_observations_refuses_memory() -> None:
    refuse_memory(ToyLearner(memory=False), "fitted_q")
    with pytest.raises(UserError, match=r"~callbacks\.q_values"):
        refuse_memory(ToyLearner(), "q_values")


# -- whole runs ------------------------------------------------------------------------------------------------------

MEMORY = (
    "algo._target_=toys.RememberingPPO", "trust=[toys]", "env=pendulum", "env.num_envs=2", "env.max_episode_steps=11",
    "trainer.max_env_steps=256", "trainer.log_interval=64",
)  # fmt: skip


def test_a_rollout_knows_what_was_remembered_before_it(tmp_path: Path) -> None:
    rlx.train(*tiny("on_policy", *MEMORY), run_dir=tmp_path / "run")
    logged = [row for row in rows(tmp_path / "run") if row["kind"] == "train"]
    for i in range(2):  # rollouts of 32 steps in episodes of 11
        assert [row[f"carry/steps_{i}"] for row in logged] == [32 * k % 11 for k in range(4)]
    assert logged[0]["carry/earned"] == 0.0
    assert logged[1]["carry/earned"] < 0.0


def test_memory_resumes_exactly_between_and_within_rollouts(tmp_path: Path) -> None:
    overrides = tiny("on_policy", *MEMORY, "trainer.checkpoint_interval=64")
    with snapshots(("checkpoint", 2), into=tmp_path) as taken:
        rlx.train(*overrides, run_dir=tmp_path / "whole")
    rlx.resume(taken["checkpoint", 2], trust=("toys",))
    same_run(taken["checkpoint", 2], tmp_path / "whole")
    with signalled("episode", 8):  # the fourth of each lane, 44 steps into the run
        rlx.train(*overrides, run_dir=tmp_path / "cut")
    summary = rlx.resume(tmp_path / "cut", trust=("toys",)).summary
    assert (summary["exact"], summary["env_steps"]) == (True, 256)
    same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("callback", ["fitted_q", "q_values"])
def test_a_run_with_memory_refuses_them_before_it_starts(callback: str, tmp_path: Path) -> None:
    own = ("algo._target_=toys.RememberingTD3BC", "trust=[toys]")
    with pytest.raises(UserError, match=rf"~callbacks\.{callback}"):
        rlx.train(*tiny("offline", f"callbacks=[default,{callback}]", *own), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert rlx.train(*tiny("offline", *own), run_dir=tmp_path / "run").summary["updates"] == 60


# -- a collector of the user's own -----------------------------------------------------------------------------------

OWN = """
from rlx.collectors import LocalCollector, LocalConfig


class Loud(LocalCollector):
    def __init__(self, learner, make_envs, reward, seed, volume):
        super().__init__(LocalConfig(), learner, make_envs, reward, seed)
        self.volume = volume

    def collect(self, n):
        steps = super().collect(n)
        return steps._replace(reward=steps.reward * self.volume)


class Quiet(LocalCollector):
    def collect(self, n):
        steps = super().collect(n)
        return steps._replace(reward=steps.reward * 0.0)
"""


@pytest.fixture
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_collector.py").write_text(OWN)
    (tmp_path / "conf" / "collector").mkdir(parents=True)
    (tmp_path / "conf" / "collector" / "loud.yaml").write_text("_target_: own_collector.Loud\nvolume: 1000.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize(
    ("override", "largest"), [("collector=loud", 1000.0), ("collector._target_=own_collector.Quiet", 0.0)]
)
def test_a_collector_is_one_file_and_one_yaml(override: str, largest: float, tmp_path: Path) -> None:
    overrides = tiny("off_policy", override, "trainer.max_env_steps=70", "trainer.checkpoint_interval=30")
    with pytest.raises(UserError, match="trust"):
        rlx.train(*overrides, run_dir=tmp_path / "refused", config_dir=tmp_path / "conf")
    trusted = (*overrides, "trust=[own_collector]")
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        rlx.train(*trusted, run_dir=tmp_path / "run", config_dir=tmp_path / "conf")
    data = rlx.load_transition_dataset(tmp_path / "run")
    assert np.abs(data.reward).max() >= largest
    assert (np.abs(data.reward).max() == 0.0) == (largest == 0.0)
    rlx.resume(taken["checkpoint", 1], trust=("own_collector",))
    same_run(taken["checkpoint", 1], tmp_path / "run")


def test_runs_from_before_there_were_collectors_resume(tmp_path: Path) -> None:
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        rlx.train(*tiny("off_policy", "trainer.max_env_steps=70"), run_dir=tmp_path / "run")
    config = taken["checkpoint", 1] / "config.yaml"
    text = config.read_text()
    own = "collector:\n  _target_: rlx.collectors.local.LocalCollector\n  explore: true\n"
    assert own in text
    config.write_text(text.replace(own, ""))
    resumed(taken["checkpoint", 1])
    same_run(taken["checkpoint", 1], tmp_path / "run")


# -- lives -----------------------------------------------------------------------------------------------------------


def test_a_lost_life_ends_bootstrapping_and_nothing_else() -> None:
    """The learner sees an end; the episode, its return and what is remembered go on."""
    one = collector(3, 3)
    step = one.envs.step

    def losing(actions: Any) -> Any:
        taken = step(actions)
        lost = place(taken.next_obs)[:, 1] == 2
        return taken._replace(infos=[{LIFE_LOST: True} if x else {} for x in lost])

    one.envs.step = losing
    steps = [one.collect(1) for _ in range(4)]
    assert [s.terminated.tolist() for s in steps] == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert [None if s.lost_life is None else s.lost_life.tolist() for s in steps] == [None, [True] * 2, None, None]
    assert [len(s.episodes) for s in steps] == [0, 0, 2, 0]
    assert [e.length for e in steps[2].episodes] == [3, 3]
    assert not torch.equal(steps[2].carry[0], steps[0].carry[0])
    assert torch.equal(steps[3].carry[0], steps[0].carry[0])
