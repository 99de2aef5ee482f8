"""Native nodes against the Python ones, and how they get onto a machine."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import resumed, snapshots, tiny
from torch import Tensor, nn

import rlx
from rlx.cli import main
from rlx.commands import build_native
from rlx.config import learners, schemas
from rlx.data.replay import Replay, ReplayConfig
from rlx.errors import RunFailed, UserError
from rlx.losses import critic_loss, soft_actor_loss
from rlx.nn import Adam, AdamW, Critic, RAdam, RMSprop, SquashedGaussian, polyak
from rlx.nn.fused import Places, batched, chosen, dueling, go_back, huber_loss, recorded
from rlx.nn.mlp import MLP
from rlx.nn.native import build, choose
from rlx.nn.native.choose import is_native, use_native
from rlx.nn.optim import clip
from rlx.policy import Policy
from rlx.returns import td_target
from rlx.types import Spec

BOX = Spec("x", (3,), "float32", "box", (2,), (-2.0, -1.0), (2.0, 3.0))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """What Python computes and what the native nodes do, from the same random state."""
    found = []
    state = torch.get_rng_state()
    for on in (False, True):
        use_native(on)
        torch.set_rng_state(state)
        found.append(compute())
    return found[0], found[1]


def close(pair: tuple[Any, Any]) -> None:
    """Tensors, also in lists and dicts, that differ by rounding: measured by the largest number of each."""
    python, native = pair
    if isinstance(python, Tensor):
        atol = 1e-6 + 1e-5 * python.abs().max().item()
        return torch.testing.assert_close(native, python, rtol=0.0, atol=atol)
    assert len(python) == len(native)
    for key in python if isinstance(python, dict) else range(len(python)):
        close((python[key], native[key]))


def moved(module: nn.Module) -> nn.Module:
    """Away from gains of one and shifts of zero."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p), alpha=0.2)
    return module


def differentiated(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weight = torch.linspace(-1.0, 1.0, y.numel()).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, inputs, weight)]


# -- networks ----------------------------------------------------------------------------------------------------------

SIZES = ([3, 5, 4, 2], [23, 64, 64, 1], [17, 100, 33, 12], [4, 1], [2, 70, 130])


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    ("ensemble", "activation", "layer_norm"), itertools.product([None, 3], ["relu", "tanh", "elu"], [False, True])
)
def test_networks(ensemble: int | None, activation: str, layer_norm: bool) -> None:
    for sizes, rows in itertools.product(SIZES, (1, 7, 50)):
        net = moved(MLP(sizes, ensemble=ensemble, activation=activation, layer_norm=layer_norm))
        x = torch.randn(rows, sizes[0], requires_grad=True)
        close(both(lambda x=x, net=net: differentiated(net(x), [x, *net.parameters()])))
        assert net(x).grad_fn.name() == "NativeMLPBackward"
        with torch.no_grad():
            together = net(x)
            assert torch.equal(together, net(x.clone()))
            assert torch.equal(together[..., -1:, :], net(x[-1:]))  # whatever else is in the batch
        assert torch.equal(together, net(x).detach())


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_dropout(activation: str, layer_norm: bool) -> None:
    net = moved(MLP([6, 32, 48, 3], activation=activation, layer_norm=layer_norm, dropout=0.3))
    x = torch.randn(40, 6, requires_grad=True)
    close(both(lambda: differentiated(net(x), [x, *net.parameters()])))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("wanted", ["obs", "action", "both"])
@pytest.mark.parametrize("members", [None, slice(1), slice(1, 3), torch.tensor([2, 0])])
def test_critics(frozen: bool, wanted: str, members: Any) -> None:
    critic = moved(Critic(3, 2, [20, 6], n=4, layer_norm=True))
    rows = torch.randn(9, 12)
    obs, action = rows[:, 1:4].requires_grad_(wanted != "action"), rows[:, 5:7].requires_grad_(wanted != "obs")
    inputs = [x for x in (obs, action, *([] if frozen else critic.parameters())) if x.requires_grad]
    close(both(lambda: differentiated(critic(obs, action, frozen=frozen, members=members), inputs)))
    with torch.no_grad():
        close(both(lambda: critic(obs, action, members=members)))


@pytest.mark.usefixtures("native")
def test_each_member_may_read_rows_of_its_own() -> None:
    net = moved(MLP([5, 8, 2], ensemble=3))
    x = torch.randn(3, 6, 5, requires_grad=True)
    close(both(lambda: differentiated(net(x), [x, *net.parameters()])))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_of_gradients(layer_norm: bool) -> None:
    net = moved(MLP([3, 8, 8, 2], activation="tanh", layer_norm=layer_norm))
    x = torch.randn(4, 3, requires_grad=True)

    def penalty() -> list[Tensor]:
        slope = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)[0]
        return list(torch.autograd.grad(slope.square().sum(), [x, *net.parameters()], allow_unused=True))

    pair = both(penalty)
    for ours, theirs in zip(*pair, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            close((ours, theirs))


@pytest.mark.usefixtures("native")
def test_what_is_not_float32_is_left_to_python() -> None:
    net = MLP([3, 5, 2]).double()
    assert type(net(torch.randn(4, 3, dtype=torch.float64)).grad_fn).__name__ == "HandWrittenMLPBackward"


@pytest.mark.usefixtures("native")
def test_weights_that_changed_since_are_refused() -> None:
    net = MLP([3, 5, 2])
    loss = net(torch.randn(4, 3)).sum()
    Adam(net.parameters(), 0.1).minimize(loss, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, list(net.parameters()))


@pytest.mark.usefixtures("native")
def test_a_graph_is_freed_after_its_use() -> None:
    net = MLP([3, 5, 2])
    loss = net(torch.randn(4, 3)).sum()
    torch.autograd.grad(loss, list(net.parameters()))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, list(net.parameters()))


@pytest.mark.usefixtures("native")
def test_threads_change_no_bit() -> None:
    critic = moved(Critic(17, 6, [130, 130], n=3, layer_norm=True))
    obs, action = torch.randn(200, 17), torch.randn(200, 6, requires_grad=True)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(differentiated(critic(obs, action), [action, *critic.parameters()]))
    torch.set_num_threads(1)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.usefixtures("native")
def test_extreme_numbers() -> None:
    net = MLP([1, 16, 1], activation="tanh")
    x = torch.tensor([[1e30], [-1e30], [0.0], [float("nan")]])
    with torch.no_grad():
        python, native = both(lambda: net(x))
    torch.testing.assert_close(native, python, equal_nan=True)


# -- samples and losses ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("dim", [1, 6, 17])
def test_squashed_samples(dim: int) -> None:
    actor = SquashedGaussian(3, dim, [16])
    with torch.no_grad():
        actor.net.biases[-1].add_(torch.linspace(-25.0, 12.0, 2 * dim))  # also where log_std is clamped
    obs = torch.randn(30, 3)

    def sample() -> list[Tensor]:
        action, log_prob = actor.sample(obs)
        loss = (log_prob * torch.linspace(-1, 1, 30)).sum() + action.square().sum()
        return [action.detach(), log_prob.detach(), *torch.autograd.grad(loss, list(actor.parameters()))]

    python, native = both(sample)
    torch.testing.assert_close(native, python, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(*reversed(both(lambda: actor.sample(obs))), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("native")
def test_losses() -> None:
    q, target = torch.randn(3, 20, requires_grad=True), torch.randn(20)
    log_prob, alpha = torch.randn(20, requires_grad=True), torch.tensor(0.3)
    columns = torch.rand(20, 4)

    def losses() -> list[Any]:
        loss, metrics = critic_loss(q, target, 0.5)
        other, more = soft_actor_loss(q[0].contiguous(), log_prob, alpha)
        grads = torch.autograd.grad(2.0 * loss + 3.0 * other, [q, log_prob])
        return [metrics | more, *grads, td_target(*columns.unbind(1)), clip(columns[:, 0].clone(), 0.1)]

    close(both(losses))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("duel", [False, True])
def test_recorded_networks(duel: bool) -> None:
    net = moved(MLP([4, 24, 24, 3 + duel], activation="tanh"))
    params, obs, action = list(net.parameters()), torch.randn(9, 4), torch.randint(3, (9,))
    target, weight = 2.0 * torch.randn(9), torch.rand(9)

    def gradients() -> list[Tensor]:
        places = Places(params)
        head = net(recorded(obs.clone()))
        loss, *others = huber_loss(chosen(dueling(head) if duel else head, action), target, weight)
        with torch.no_grad():
            go_back(loss, places)
        return [loss, *others, *places.parts]

    close(both(gradients))


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(
    "make",
    [
        lambda p: Adam(p, 1e-2),
        lambda p: Adam(p, 1e-2, weight_decay=0.1, max_grad_norm=0.5),
        lambda p: AdamW(p, 1e-2, weight_decay=0.1),
        lambda p: RMSprop(p, 1e-2, 0.99, 1e-5),
        lambda p: RAdam(p, 1e-2),
    ],
)
def test_optimizers(make: Any) -> None:
    x, y = torch.randn(30, 5), torch.randn(30, 2)
    started = MLP([5, 16, 2]).state_dict()

    def train() -> dict[str, Tensor]:
        net = MLP([5, 16, 2])
        net.load_state_dict(started)
        optimizer = make(net.parameters())
        for _ in range(20):
            optimizer.minimize((net(x) - y).square().mean())
        return net.state_dict() | optimizer.tensors()

    python, native = both(train)
    torch.testing.assert_close(native, python, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("tau", [0.005, 0.7, 1.0])
def test_polyak(tau: float) -> None:
    online, start = [torch.randn(7, 3), torch.randn(5)], [torch.randn(7, 3), torch.randn(5)]

    def follow() -> list[Tensor]:
        targets = [t.clone() for t in start]
        polyak(targets, online, tau)
        return targets

    close(both(follow))
    if tau == 1.0:
        assert all(map(torch.equal, follow(), online))


# -- data and acting ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("steps", [5, 60])
def test_n_step_transitions_are_the_same_bits(n: int, steps: int) -> None:
    replay = Replay(ReplayConfig(capacity=60, n_step=n), BOX, 3, 0.97, seed=0)
    rng = np.random.default_rng(0)
    for step in range(steps):  # the ring goes round where there are more than 20
        obs, next_obs = rng.standard_normal((2, 3, 3), np.float32)
        ended = rng.random(3) < 0.2
        replay.add(obs, np.zeros((3, 2), np.float32), rng.standard_normal(3), next_obs, ended, ~ended & (step % 9 == 8))
    place = np.arange(len(replay.store))
    python, native = both(lambda: replay.read(place).rows)
    assert torch.equal(python, native)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("algo", ["sac", "td3", "ppo", "iql"])
def test_one_observation_gets_the_action_that_it_gets_in_a_batch(algo: str) -> None:
    learner = learners()[algo](schemas()[f"algo/{algo}"](hidden=[32, 32]), BOX)
    policy, obs = Policy(learner), np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    together = policy.act(obs)
    assert all(np.array_equal(policy.act(row), action) for row, action in zip(obs, together, strict=True))
    use_native(False)
    np.testing.assert_allclose(Policy(learner).act(obs), together, rtol=1e-5, atol=1e-6)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_nodes(native_cache: Path, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    monkeypatch.delenv("RLX_NATIVE")
    build.load.cache_clear()
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        result = rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    assert result.summary["native"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["native"] is True
    use_native(False)
    rlx.load(tmp_path / "run").act(np.zeros(3))
    assert is_native()  # it acts by what it was trained with
    caplog.clear()
    assert resumed(taken["checkpoint", 1], "native=false").summary["native"] is False
    assert "now has Python ones: results may differ in the last bits" in caplog.text
    use_native(False)


def test_a_run_of_python_goes_on_in_python(native_cache: Path, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    monkeypatch.delenv("RLX_NATIVE")
    build.load.cache_clear()
    assert resumed(taken["checkpoint", 1]).summary["native"] is False
    assert "last bits" not in caplog.text


@pytest.mark.parametrize("value", ["maybe", "1"])
def test_only_three_words_are_known(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env=pendulum", f"native={value}"]) == 2
    assert "native must be auto, true or false" in capsys.readouterr().err


# -- building ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and nobody who starts a build in the background."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RLX_NATIVE")
    monkeypatch.setattr(choose, "build_in_background", lambda: None)
    build.load.cache_clear()
    yield tmp_path / "rlx" / "native"
    use_native(False)
    build.load.cache_clear()


def said(caplog: pytest.LogCaptureFixture) -> str:
    text = caplog.text
    caplog.clear()
    return text


def without_compiler() -> str:
    raise build.Unavailable("There is no C++ compiler; apt-get install g++ would make runs faster")


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_runs_are_told_once(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for module in (build, choose):
        monkeypatch.setattr(module, "compiler", without_compiler)
    choose.set_native("auto")
    assert not is_native()
    assert "There is no C++ compiler" in said(caplog)
    choose.set_native("auto")
    assert not said(caplog)
    with pytest.raises(UserError, match=r"native=true cannot be had here\. There is no C\+\+ compiler"):
        choose.set_native(True)
    with pytest.raises(UserError, match="There is no"):
        build_native([])


@pytest.mark.usefixtures("cache")
def test_the_first_run_has_them_built_for_the_next(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    started = []
    monkeypatch.setattr(choose, "compiler", lambda: "g++")
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    choose.set_native("auto")
    assert started
    assert not is_native()
    assert "built in the background" in said(caplog)
    choose.set_native(False)
    assert len(started) == 1


def test_nobody_builds_twice_at_a_time(cache: Path, monkeypatch: Any) -> None:
    started = []
    monkeypatch.setattr(choose, "compiler", lambda: "g++")
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    cache.mkdir(parents=True)
    with build.locked(cache):
        assert build.being_built()
        choose.set_native("auto")
    assert not build.being_built()
    assert not started


def test_a_build_that_fails_is_told_once(cache: Path, monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    broken = cache.parent / "broken"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: too new' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(broken))
    monkeypatch.setattr(choose, "compiler", lambda: str(broken))
    monkeypatch.setattr("os.nice", lambda n: 0)
    with pytest.raises(RunFailed, match="too new"):
        build_native(["--background"])
    assert not list(cache.glob("building-*"))
    choose.set_native("auto")
    assert "could not be built" in said(caplog)
    choose.set_native("auto")
    assert not said(caplog)
    with pytest.raises(RunFailed, match="too new"):
        choose.set_native(True)


@pytest.mark.parametrize("damage", ["cut", "no_sum", "open_to_all", "sum_of_another"])
def test_a_damaged_build_is_not_loaded(damage: str, cache: Path, native_cache: Path, caplog: Any) -> None:
    shutil.copytree(native_cache / "rlx" / "native", cache)
    file = cache / f"{build.key()}.so"
    about = file.with_suffix(".json")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    elif damage == "no_sum":
        about.unlink()
    elif damage == "open_to_all":
        file.chmod(0o666)
    else:
        about.write_text('{"sha256": 3}')
    choose.set_native("auto")
    assert not is_native()
    assert "is not used" in caplog.text
    assert "build-native builds it anew" in caplog.text


@pytest.mark.usefixtures("cache")
def test_the_variable_says_what_auto_means(monkeypatch: Any) -> None:
    monkeypatch.setenv("RLX_NATIVE", "false")
    choose.set_native("auto")
    assert not is_native()
    monkeypatch.setenv("RLX_NATIVE", "perhaps")
    with pytest.raises(UserError, match="RLX_NATIVE must be auto, true or false"):
        choose.set_native("auto")


def test_build_native_takes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-native", "now"]) == 2
    assert "it takes nothing" in capsys.readouterr().err


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("rows", "inner", "columns"), [(5, 7, 3), (33, 16, 64), (20, 9, 1), (1, 4, 17)])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_products_of_stacks(rows: int, inner: int, columns: int, across: bool, flipped: bool) -> None:
    x = torch.randn(2, inner, rows).mT if flipped else torch.randn(2, rows, inner)
    y = torch.randn(2, columns, inner).mT if across else torch.randn(2, inner, columns)
    to = torch.randn(2, rows, columns)
    close(both(lambda: [batched(x, y), batched(x, y, to.clone())]))
    same = x[:1].expand(2, -1, -1)
    close(both(lambda: [batched(same, y)]))
