"""`experiment=<algo>_paper` has the numbers of the paper or of its authors' code, whatever the pair of the env says."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlx.config import compose_config
from rlx.paths import conf_dir
from rlx.schedules import Kind

MILLION = 1_000_000
# where from: key values
PAPERS: dict[str, tuple[str, dict[str, object]]] = {
    "td3_bc_paper": (
        "arXiv:2106.06860; sfujim/TD3_BC main.py, TD3_BC.py",
        {"trainer.max_updates": MILLION, "algo.hidden": [256, 256], "algo.batch_size": 256, "algo.alpha": 2.5,
         "algo.actor_lr": 3e-4, "algo.critic_lr": 3e-4, "algo.policy_delay": 2, "algo.tau": 0.005,
         "algo.normalize_obs": True, "schedule.kind": Kind.constant},
    ),
    "dt_paper": (
        "arXiv:2106.01345; kzl/decision-transformer gym/experiment.py, training/seq_trainer.py",
        {"trainer.max_updates": 100_000, "trainer.eval_episodes": 100, "algo.context": 20, "algo.width": 128,
         "algo.layers": 3, "algo.heads": 1, "algo.dropout": 0.1, "algo.batch_size": 64, "algo.lr": 1e-4,
         "algo.warmup_updates": 10_000, "algo.weight_decay": 1e-4, "algo.max_grad_norm": 0.25,
         "algo.return_scale": 1000.0, "algo.normalize_obs": True, "schedule.kind": Kind.constant},
    ),
    "iql_paper": (
        "arXiv:2110.06169; ikostrikov/implicit_q_learning configs/mujoco_config.py, train_offline.py",
        {"trainer.max_updates": MILLION, "algo.actor_decay_updates": MILLION, "algo.expectile": 0.7, "algo.beta": 3.0,
         "algo.actor_lr": 3e-4, "algo.value_lr": 3e-4, "algo.critic_lr": 3e-4, "algo.tau": 0.005,
         "algo.batch_size": 256, "algo.hidden": [256, 256], "reward.normalize_return": True},
    ),
    "iql_antmaze_paper": (
        "arXiv:2110.06169; ikostrikov/implicit_q_learning configs/antmaze_config.py, train_offline.py",
        {"trainer.max_updates": MILLION, "algo.expectile": 0.9, "algo.beta": 10.0, "reward.shift": -1.0,
         "reward.normalize_return": False, "trainer.eval_episodes": 100},
    ),
    "cql_paper": (
        "arXiv:2006.04779; aviralkumar2907/CQL d4rl/examples/cql_mujoco_new.py",
        {"trainer.max_updates": MILLION, "algo.bc_updates": 40_000, "algo.hidden": [256, 256, 256],
         "algo.actor_lr": 1e-4, "algo.critic_lr": 3e-4, "algo.alpha_lr": 1e-4, "algo.weight": 10.0,
         "algo.lagrange_threshold": None, "algo.n_actions": 10, "algo.backup_entropy": False, "algo.batch_size": 256},
    ),
    "cal_ql_paper": (
        "arXiv:2303.05479; nakamotoo/Cal-QL scripts/run_antmaze.sh, JaxCQL/conservative_sac.py",
        {"trainer.pretrain_updates": MILLION, "trainer.max_env_steps": MILLION, "trainer.offline_batch_ratio": 0.5,
         "algo.actor_hidden": [256, 256], "algo.critic_hidden": [256] * 4, "algo.weight": 5.0,
         "algo.lagrange_threshold": 0.8, "algo.max_q_backup": True, "algo.actor_lr": 1e-4, "algo.critic_lr": 3e-4,
         "reward.scale": 10.0, "reward.shift": -5.0, "trainer.eval_episodes": 20},
    ),
    "awac_paper": (
        "arXiv:2006.09359; rail-berkeley/rlkit examples/awac/mujoco/awac1.py",
        {"trainer.pretrain_updates": 50_000, "trainer.max_env_steps": 500_000, "algo.actor_hidden": [256] * 4,
         "algo.critic_hidden": [256, 256], "algo.actor_weight_decay": 1e-4, "algo.batch_size": 1024,
         "algo.temperature": 2.0, "algo.actor_lr": 3e-4, "algo.critic_lr": 3e-4, "algo.tau": 0.005},
    ),
    "bcq_paper": (
        "arXiv:1812.02900; sfujim/BCQ continuous_BCQ/main.py, BCQ.py",
        {"trainer.max_updates": MILLION, "algo.hidden": [400, 300], "algo.vae_hidden": [750, 750],
         "algo.batch_size": 100, "algo.phi": 0.05, "algo.lam": 0.75, "algo.tau": 0.005, "algo.actor_lr": 1e-3,
         "algo.critic_lr": 1e-3, "algo.vae_lr": 1e-3, "algo.eval_candidates": 100, "algo.normalize_obs": False},
    ),
    "bear_paper": (
        "arXiv:1906.00949; aviralkumar2907/BEAR readme.md, algos.py",
        {"trainer.max_updates": MILLION, "algo.hidden": [400, 300], "algo.vae_hidden": [750, 750],
         "algo.batch_size": 100, "algo.noise_clip": 0.5, "algo.mmd_samples": 5, "algo.epsilon": 0.05,
         "algo.warmup_updates": 20_000, "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.vae_lr": 1e-3,
         "algo.multiplier_lr": 1e-3, "algo.normalize_obs": False},
    ),
    "sac_paper": (
        "arXiv:1812.05905; rail-berkeley/softlearning examples/development/variants.py",
        {"trainer.max_env_steps": MILLION, "algo.hidden": [256, 256], "algo.batch_size": 256, "algo.actor_lr": 3e-4,
         "algo.critic_lr": 3e-4, "algo.alpha_lr": 3e-4, "algo.tau": 0.005, "replay.capacity": MILLION,
         "trainer.gradient_updates_per_step": 1},
    ),
    "td3_paper": (
        "arXiv:1802.09477",
        {"trainer.max_env_steps": MILLION, "algo.hidden": [400, 300], "algo.batch_size": 100, "algo.actor_lr": 1e-3,
         "algo.critic_lr": 1e-3, "algo.tau": 0.005, "algo.policy_delay": 2, "algo.target_noise": 0.2,
         "algo.target_noise_clip": 0.5, "algo.exploration_noise": 0.1},
    ),
    "redq_paper": (
        "arXiv:2101.05982; watchernyu/REDQ experiments/train_redq_sac.py",
        {"algo.critics": 10, "algo.subset": 2, "algo.policy_delay": 20, "trainer.gradient_updates_per_step": 20,
         "trainer.learning_starts": 5000, "algo.batch_size": 256, "algo.actor_lr": 3e-4, "algo.tau": 0.005},
    ),
    "crossq_paper": (
        "arXiv:1902.05605; adityab/CrossQ train.py",
        {"trainer.max_env_steps": 5 * MILLION, "algo.critic_hidden": [2048, 2048], "algo.hidden": [256, 256],
         "algo.actor_lr": 1e-3, "algo.critic_lr": 1e-3, "algo.alpha_lr": 1e-3, "algo.beta1": 0.5,
         "algo.policy_delay": 3, "trainer.learning_starts": 5000, "algo.renorm_warmup": 100_000},
    ),
    "tqc_paper": (
        "arXiv:2005.04269; SamsungLabs/tqc_pytorch main.py, tqc/structures.py",
        {"trainer.max_env_steps": MILLION, "algo.critic_hidden": [512] * 3, "algo.hidden": [256, 256],
         "algo.critics": 5, "algo.quantiles": 25, "algo.batch_size": 256, "algo.actor_lr": 3e-4},
    ),
    "rlpd_paper": (
        "arXiv:2302.02948; ikostrikov/rlpd README.md, configs/rlpd_config.py",
        {"trainer.max_env_steps": 250_000, "trainer.gradient_updates_per_step": 20, "trainer.learning_starts": 5000,
         "algo.critics": 10, "algo.subset": 2, "algo.hidden": [256, 256], "trainer.offline_batch_ratio": 0.5},
    ),
    "rlpd_antmaze_paper": (
        "arXiv:2302.02948; ikostrikov/rlpd README.md, train_finetuning.py",
        {"trainer.max_env_steps": 300_000, "algo.subset": 1, "algo.backup_entropy": False,
         "algo.hidden": [256, 256, 256], "reward.shift": -1.0},
    ),
}  # fmt: skip
OFFLINE = ("td3_bc", "iql", "cql", "bcq", "bear")


def test_every_paper_has_a_row_and_a_file() -> None:
    assert {p.stem for p in (conf_dir() / "experiment").glob("*_paper.yaml")} == set(PAPERS)
    for algo in ("awac", "bcq", "bear", "cal_ql", "cql", "iql", "td3_bc"):  # every offline algorithm with a paper
        assert f"{algo}_paper" in PAPERS


@pytest.mark.parametrize("env", ["pendulum", "hopper"])  # one with tuned pairs of small networks, one without
@pytest.mark.parametrize("name", list(PAPERS))
def test_an_experiment_has_the_numbers_of_its_paper(name: str, env: str) -> None:
    cfg = compose_config([f"experiment={name}", f"env={env}", "dataset=minari", f"env.dataset_id=some/{env}-v0"])
    _, expected = PAPERS[name]
    for key, value in expected.items():
        held = OmegaConf.select(cfg, key)
        assert (list(held) if isinstance(value, list) else held) == value, key


@pytest.mark.parametrize("algo", OFFLINE)
def test_no_schedule_of_a_paper_ends_before_its_run_does(algo: str) -> None:
    cfg = compose_config([f"experiment={algo}_paper", "env=pendulum", "dataset=minari"])
    assert cfg.schedule.kind is Kind.constant
    assert cfg.algo.get("actor_decay_updates") in (None, cfg.trainer.max_updates)


def test_the_cosine_of_a_short_run_ends_with_its_budget_and_there_is_none_when_fine_tuning() -> None:
    short = compose_config(["algo=iql", "env=hopper", "dataset=minari", "trainer.max_updates=500"])
    assert short.algo.actor_decay_updates == 500
    online = compose_config(["algo=iql", "env=hopper", "dataset=minari", "trainer=offline_to_online"])
    assert online.algo.actor_decay_updates is None
