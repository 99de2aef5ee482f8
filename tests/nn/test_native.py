"""Native nodes against the Python ones, and how they get onto a machine."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import do_without_native, resumed, snapshots, tiny
from torch import Tensor, nn

import rlx
from rlx.cli import main
from rlx.commands import build_native
from rlx.config import learners, schemas
from rlx.data.replay import Replay, ReplayConfig
from rlx.errors import RunFailed, UserError
from rlx.losses import critic_loss, soft_actor_loss
from rlx.nn import Adam, AdamW, Critic, RAdam, RMSprop, SquashedGaussian, polyak
from rlx.nn.fused import ACTIVATIONS, Places, batched, chosen, dueling, go_back, huber_loss, recorded, squash
from rlx.nn.mlp import MLP
from rlx.nn.native import Nodes, build, choose
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
    ("ensemble", "activation", "layer_norm"), itertools.product([None, 3], list(ACTIVATIONS), [False, True])
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
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_layers_of_every_width(activation: str) -> None:
    for n in range(1, 35):  # one vector with a rest or two, on all CPUs
        net = moved(MLP([n, n, n], activation=activation))
        x = torch.randn(7, n, requires_grad=True)
        close(both(lambda x=x, net=net: differentiated(net(x), [x, *net.parameters()])))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("layer_norm", [False, True])
def test_dropout(activation: str, layer_norm: bool) -> None:
    net = moved(MLP([6, 32, 48, 3], activation=activation, layer_norm=layer_norm, dropout=0.3))
    x = torch.randn(40, 6, requires_grad=True)
    close(both(lambda: differentiated(net(x), [x, *net.parameters()])))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("ensemble", [None, 2])
@pytest.mark.parametrize("rows", [15, 16, 97])
def test_dropout_of_narrow_layers(rows: int, ensemble: int | None, layer_norm: bool) -> None:
    """Whose outputs Python has column by column, and drops in that order."""
    x = torch.randn(rows, 65, requires_grad=True)
    for hidden in ([9], [15], [16], [9, 40, 10], *([] if layer_norm else ([1], [2]))):  # two units have no spread
        net = moved(MLP([65, *hidden, 17], ensemble=ensemble, layer_norm=layer_norm, dropout=0.3))
        close(both(lambda net=net: differentiated(net(x), [x, *net.parameters()])))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("members", [None, slice(1), slice(0, 3, 2), torch.tensor([2, 0])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("frozen", [False, True])
def test_dropout_draws_what_python_draws(frozen: bool, dtype: torch.dtype, members: Any) -> None:
    """Once, also where the node leaves it to Python: the draws after it are the same, too."""
    net = moved(MLP([4, 20, 2], ensemble=3, dropout=0.5)).to(dtype)
    x = torch.randn(6, 4, dtype=dtype)
    close(both(lambda: [net(x, frozen=frozen, members=members).detach(), torch.rand(3)]))


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
@pytest.mark.parametrize(
    "members", [slice(0, 0), slice(-1, None), slice(None, None, 2), [], [-1], [0, -3], [True, False, True]]
)
def test_members_are_named_as_in_python(members: Any) -> None:
    critic = moved(Critic(3, 2, [8], n=3))
    if isinstance(members, list):
        members = torch.tensor(members, dtype=torch.bool if True in members else torch.long)
    obs, action = torch.randn(4, 3), torch.randn(4, 2)
    with torch.no_grad():
        python, native = both(lambda: critic(obs, action, members=members))
    torch.testing.assert_close(native, python)
    for missing in (3, -4):
        with pytest.raises(IndexError):
            critic(obs, action, members=torch.tensor([missing]))


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


def other_layers(net: MLP) -> None:
    for p, shape in zip(net.parameters(), ((3, 80), (80, 2), (80,), (2,)), strict=True):
        p.data = torch.zeros(shape)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("change", [other_layers, lambda net: net.double()])
def test_weights_of_another_kind_than_before_are_refused(change: Callable[[MLP], Any]) -> None:
    net, x = MLP([3, 5, 2]), torch.randn(4, 3, requires_grad=True)
    loss = net(x).sum()
    change(net)
    with pytest.raises(RuntimeError, match="parameters of a network have changed"):
        torch.autograd.grad(loss, x)


@pytest.mark.usefixtures("native")
def test_gradients_without_numbers_in_memory_are_refused() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    for y in (MLP([3, 5, 2])(x), *squash(MLP([3, 4])(x), torch.randn(4, 2))):
        with pytest.raises(RuntimeError, match="the gradient of a native node is a float32 on the CPU"):
            torch.autograd.grad(y, x, torch._efficientzerotensor(y.shape), retain_graph=True)


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


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_one_by_one(activation: str) -> None:
    """A unit that copies its input: the activation itself, and its slope, against double precision."""
    net = MLP([1, 1, 1], activation=activation)
    with torch.no_grad():
        for weight, bias in zip(net.weights, net.biases, strict=True):
            weight.fill_(1.0)
            bias.zero_()
    points = torch.cat([torch.linspace(-12.0, 12.0, 4801), torch.tensor([-100.0, -30.0, -1e-6, 1e-6, 30.0, 100.0])])
    x, exact = points.unsqueeze(-1).requires_grad_(), points.double().requires_grad_()
    y, expected = net(x), ACTIVATIONS[activation](exact * 1.0)
    torch.testing.assert_close(y.squeeze(-1).double(), expected, rtol=2e-6, atol=1e-6)
    slope, wanted = torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(expected.sum(), exact)[0]
    torch.testing.assert_close(slope.squeeze(-1).double(), wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_nan_is_let_through(activation: str, layer_norm: bool) -> None:
    """A network that has diverged says so, whichever nodes compute it."""
    net = moved(MLP([2, 20, 3], activation=activation, layer_norm=layer_norm))
    x = torch.tensor([[float("nan"), 1.0], [1.0, 2.0], [-3.0, 0.5]], requires_grad=True)
    python, native = both(lambda: differentiated(net(x), [x, *net.parameters()]))
    assert native[0].isnan().tolist() == [[True] * 3, [False] * 3, [False] * 3]
    for ours, theirs in zip(native, python, strict=True):
        assert (ours.isnan() | ~theirs.isnan()).all()
        torch.testing.assert_close(ours[~ours.isnan()], theirs[~ours.isnan()], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("native")
def test_gradients_pass_where_a_hidden_unit_is_nan() -> None:
    """As in torch's ReLU, which is zero where its output is at most zero, and nowhere else."""
    net = MLP([2, 4, 1])
    with torch.no_grad():
        net.biases[0][1] = float("nan")
    python, native = both(lambda: differentiated(net(torch.ones(1, 2)), [net.biases[0]])[1])
    assert native[1] == -net.weights[1][1, 0]
    torch.testing.assert_close(native, python)


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
def test_samples_of_nan_have_gradients_of_nan() -> None:
    head = torch.tensor([[0.3, float("nan")], [float("nan"), -0.2], [0.5, -0.5]], requires_grad=True)
    noise = torch.randn(3, 1)

    def sample() -> list[Tensor]:
        action, log_prob = squash(head, noise)
        return [action.detach(), log_prob.detach(), *torch.autograd.grad(action.sum() + log_prob.sum(), [head])]

    python, native = both(sample)
    torch.testing.assert_close(native, python, equal_nan=True)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_clipping_does_not_hide_gradients_that_are_not_finite(bad: float) -> None:
    def clipped() -> list[Tensor]:
        vector = torch.tensor([1.0, bad, 2.0])
        return [clip(vector, 0.5), vector]

    python, native = both(clipped)
    torch.testing.assert_close(native, python, equal_nan=True)
    assert native[1].isnan().any()


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
    caplog.clear()
    assert resumed(taken["checkpoint", 1], "native=false").summary["native"] is False
    assert "now has Python ones: results may differ in the last bits" in caplog.text
    use_native(False)


def nodes_of(policy: Policy, monkeypatch: Any) -> list[bool]:
    """Which nodes it acts by, called twice."""
    found: list[bool] = []
    act = type(policy.learner).act

    def watched(self: Any, *given: Any) -> Any:
        found.append(is_native())
        return act(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(type(policy.learner), "act", watched)
        for _ in range(2):
            policy.act(np.zeros(3))
    return found


def test_every_policy_acts_by_its_own_nodes(native_cache: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """And neither loading nor acting, evaluating or exporting changes those of the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    monkeypatch.delenv("RLX_NATIVE")
    build.load.cache_clear()
    runs, policies, exports = {}, {}, {}
    for native in (True, False):
        result = rlx.train(*tiny("off_policy", f"native={str(native).lower()}"), run_dir=tmp_path / f"run_{native}")
        runs[native], policies[native] = result.run_dir, [result.policy]
    for of_process in (True, False):
        use_native(of_process)
        for native, run in runs.items():
            exports[native] = rlx.export(run, format="torch")
            policies[native] += [rlx.load(run), rlx.load(exports[native])]
            rlx.evaluate(run, episodes=1)
        for native in (True, False, True):
            for policy in policies[native]:
                assert nodes_of(policy, monkeypatch) == [native, native]
        obs = np.ones(3, np.float32)
        for native, run in runs.items():
            assert np.array_equal(rlx.load(run).act(obs), rlx.load(exports[native]).act(obs))
        assert is_native() is of_process
    for word, native in (("true", True), ("false", False)):  # goes before what a policy had
        monkeypatch.setenv("RLX_NATIVE", word)
        assert nodes_of(rlx.load(runs[not native]), monkeypatch) == [native, native]
    use_native(False)


@pytest.mark.usefixtures("native")
def test_nodes_are_of_a_thread_for_a_while() -> None:
    seen: dict[str, bool] = {}

    def look(name: str) -> None:
        thread = threading.Thread(target=lambda: seen.update({name: is_native()}))
        thread.start()
        thread.join()

    with Nodes(None):
        look("elsewhere")
        with Nodes(build.load()):
            assert is_native()
        assert not is_native()
        use_native(False)  # of the process
        use_native(True)
        assert not is_native()
        with pytest.raises(ZeroDivisionError), Nodes(build.load()):
            _ = 1 // 0
        assert not is_native()
    look("afterwards")
    assert is_native()
    assert seen == {"elsewhere": True, "afterwards": True}


@pytest.mark.parametrize(("word", "native"), [("true", True), ("false", False)])
def test_the_variable_goes_before_what_a_run_had(
    word: str, native: bool, native_cache: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    monkeypatch.setenv("RLX_NATIVE", word)
    build.load.cache_clear()
    choose.set_native("auto", saved=not native)
    assert is_native() is native
    assert "may differ in the last bits" in caplog.text
    choose.set_native(not native, saved=not native)  # and what is typed goes before both
    assert is_native() is not native
    use_native(False)


def test_a_run_of_python_goes_on_in_python(native_cache: Path, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    with snapshots(("checkpoint", 1), into=tmp_path) as taken:
        rlx.train(*tiny("off_policy"), run_dir=tmp_path / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(native_cache))
    monkeypatch.delenv("RLX_NATIVE")
    build.load.cache_clear()
    assert resumed(taken["checkpoint", 1]).summary["native"] is False
    assert "last bits" not in caplog.text


@pytest.mark.parametrize("value", ["maybe", "1", "null"])
def test_only_three_words_are_known(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env=pendulum", f"native={value}"]) == 2
    assert f"native must be auto, true or false (native={value})" in capsys.readouterr().err


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


def without_compiler() -> list[str]:
    raise build.Unavailable("there is no C++ compiler", "type apt-get install g++")


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_runs_are_told_once(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for module in (build, choose):
        monkeypatch.setattr(module, "compiler", without_compiler)
    choose.set_native("auto")
    assert not is_native()
    assert "Native nodes cannot be built: there is no C++ compiler; type apt-get install g++." in said(caplog)
    choose.set_native("auto")
    assert not said(caplog)
    with pytest.raises(UserError) as refused:
        choose.set_native(True)
    assert str(refused.value) == (
        "native=true cannot be used: there is no C++ compiler; type apt-get install g++, or use native=auto."
    )
    with pytest.raises(UserError, match=r"^Native nodes cannot be built: there is no"):
        build_native([])


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_comes_later_is_used(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    started = []
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    with monkeypatch.context() as patch:
        patch.setattr(choose, "compiler", without_compiler)
        choose.set_native("auto")
    assert not started
    assert "there is no C++ compiler" in said(caplog)
    monkeypatch.setattr(choose, "compiler", lambda: ["g++"])
    choose.set_native("auto")
    assert started
    assert "built in the background" in said(caplog)


def test_a_folder_that_others_can_write_to_is_refused_before_a_build(
    cache: Path, native_cache: Path, monkeypatch: Any, caplog: Any, capsys: Any
) -> None:
    caplog.set_level(logging.INFO)
    started: list[Any] = []
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    monkeypatch.setattr(build, "compile_into", lambda *given: started.append(given))
    shutil.copytree(native_cache / "rlx" / "native", cache)
    cache.chmod(0o775)
    for times in (1, 0, 0):
        build.load.cache_clear()
        choose.set_native("auto")
        assert not is_native()
        assert said(caplog).count(f"chmod go-w {cache}") == times
    with pytest.raises(UserError, match="chmod go-w"):
        choose.set_native(True)
    assert main(["build-native"]) == 2
    assert f"chmod go-w {cache}" in capsys.readouterr().err
    assert not started
    cache.chmod(0o755)
    build.load.cache_clear()
    choose.set_native("auto")
    assert is_native()


@pytest.mark.usefixtures("cache")
def test_a_folder_that_cannot_be_made_is_told(monkeypatch: Any, caplog: Any, capsys: Any) -> None:
    caplog.set_level(logging.INFO)
    started: list[Any] = []
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    choose.set_native("auto")
    assert not is_native()
    assert (
        said(caplog).count("Native nodes cannot be built: /dev/null is a file, not a folder; set XDG_CACHE_HOME") == 1
    )
    with pytest.raises(
        UserError, match=r"cannot be used: /dev/null is a file, not a folder; .*, or use native=auto\.$"
    ):
        choose.set_native(True)
    assert main(["build-native"]) == 2
    assert "Native nodes cannot be built: /dev/null is a file" in capsys.readouterr().err
    assert not started


@pytest.mark.usefixtures("cache")
def test_a_user_without_a_home_is_told(monkeypatch: Any, caplog: Any, capsys: Any) -> None:
    """As in a container that is run under an id of its own."""
    caplog.set_level(logging.INFO)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", dict[int, Any]().__getitem__)  # a KeyError
    use_compiler(monkeypatch, ["g++"])
    choose.set_native("auto")
    assert not is_native()
    told = "there is no home folder to keep them in; set XDG_CACHE_HOME to a folder of your own"
    assert f"Native nodes cannot be built: {told}." in said(caplog)
    with pytest.raises(UserError, match=f"native=true cannot be used: {told}, or use native=auto"):
        choose.set_native(True)
    assert main(["build-native"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
def test_a_compiler_may_be_several_words(monkeypatch: Any) -> None:
    monkeypatch.setenv("CXX", "env g++ -g0")
    path, *words = build.compiler()
    assert path.endswith("/env")
    assert words == ["g++", "-g0"]
    assert build.version_of([path, *words]) != "?"
    monkeypatch.setenv("CXX", "no_such_compiler --fast")
    with pytest.raises(build.Unavailable, match="CXX=no_such_compiler --fast is not a program"):
        build.compiler()
    monkeypatch.setenv("CXX", "g++ '")
    with pytest.raises(build.Unavailable, match="is not a command"):
        build.compiler()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\nexit 7\n", "says nothing and ends with exit code 7"),
        ("#!/bin/sh\nexit 0\n", "says nothing and ends with exit code 0"),
        ("#!/no/such/shell\n", "cannot be run"),
    ],
)
def test_a_compiler_that_fails_without_a_word_is_told(cache: Path, monkeypatch: Any, script: str, why: str) -> None:
    broken = cache.parent.parent / "broken"
    broken.write_text(script)
    broken.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: [str(broken)])
    with pytest.raises(RunFailed, match=why):
        build.build()


@pytest.mark.parametrize(
    "said_by_compiler",
    [
        "g++: error: unrecognized command line option '-std=c++20'",
        "clang: error: the clang compiler does not support '-march=native'",
        "In function 'error_of':\nx.cpp:1:2: error: too new",
        "x.cpp:1: fatal error: torch/extension.h: No such file or directory",
    ],
)
def test_the_first_error_of_a_compiler_is_told(said_by_compiler: str, cache: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(build, "compiler", lambda: fake_compiler(cache, f'printf "{said_by_compiler}" >&2; exit 1'))
    with pytest.raises(RunFailed, match=r"^The native nodes could not be built by .*\)\.$") as failed:
        build.build()
    assert f"({said_by_compiler.splitlines()[-1]})." in str(failed.value)
    assert not isinstance(failed.value, build.Killed)


def test_compilers_are_asked_in_english(cache: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setattr(build, "compiler", lambda: fake_compiler(cache, 'echo "error: $LC_ALL" >&2; exit 1'))
    with pytest.raises(RunFailed, match="error: C"):
        build.build()


@pytest.mark.usefixtures("cache")
def test_the_first_run_has_them_built_for_the_next(monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    started = []
    monkeypatch.setattr(choose, "compiler", lambda: ["g++"])
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    choose.set_native("auto")
    assert started
    assert not is_native()
    assert "built in the background" in said(caplog)
    choose.set_native(False)
    assert len(started) == 1


def test_nobody_builds_twice_at_a_time(cache: Path, monkeypatch: Any) -> None:
    started = []
    monkeypatch.setattr(choose, "compiler", lambda: ["g++"])
    monkeypatch.setattr(choose, "build_in_background", lambda: started.append(True))
    cache.mkdir(parents=True)
    with build.locked(cache):
        assert build.being_built()
        choose.set_native("auto")
    assert not build.being_built()
    assert not started


def fake_compiler(cache: Path, script: str, name: str = "fake") -> list[str]:
    path = cache.parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return [str(path)]


def in_background(monkeypatch: Any, program: list[str]) -> None:
    """What a build in the background with this compiler comes to."""
    use_compiler(monkeypatch, program)
    monkeypatch.setattr("os.nice", lambda n: 0)
    with pytest.raises(RunFailed):
        build_native(["--background"])


def use_compiler(monkeypatch: Any, program: list[str]) -> None:
    for module in (build, choose):
        monkeypatch.setattr(module, "compiler", lambda: program)


def test_a_build_that_fails_is_told_once(cache: Path, monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    in_background(monkeypatch, fake_compiler(cache, "echo 'x.cpp:1: error: too new' >&2; exit 1"))
    assert not list(cache.glob("building-*"))
    choose.set_native("auto")
    told = said(caplog)
    assert "could not be built" in told
    assert "(x.cpp:1: error: too new). To try again, type python -m rlx build-native. Everything works" in told
    choose.set_native("auto")
    assert not said(caplog)
    with pytest.raises(RunFailed, match="too new"):
        choose.set_native(True)


JUNK = 'for word; do [ "$before" = -o ] && echo junk > "$word"; before=$word; done'


def test_a_compiler_whose_builds_do_not_load_is_told_once(
    cache: Path, monkeypatch: Any, caplog: Any, started: list[bool]
) -> None:
    caplog.set_level(logging.INFO)
    in_background(monkeypatch, fake_compiler(cache, JUNK))
    assert not list(cache.glob("*.so"))
    choose.set_native("auto")
    assert "has built cannot be loaded (" in said(caplog)
    choose.set_native("auto")
    assert not said(caplog)
    assert not started


def test_a_build_that_does_not_load_is_built_anew(cache: Path, native_cache: Path, monkeypatch: Any) -> None:
    """One of a machine with other libraries, in a folder that both use."""
    good = native_cache / "rlx" / "native" / f"{build.key()}.so"
    cache.mkdir(parents=True)
    (cache / good.name).write_bytes(b"junk")
    (cache / good.name).chmod(0o600)
    about = {"sha256": hashlib.sha256(b"junk").hexdigest()}
    (cache / good.name).with_suffix(".json").write_text(json.dumps(about))
    use_compiler(monkeypatch, fake_compiler(cache, JUNK.replace("echo junk >", f"cp '{good}'")))
    assert build.load() is None
    choose.set_native(True)
    assert is_native()


@pytest.fixture
def started(monkeypatch: Any) -> list[bool]:
    """Builds that were started in the background."""
    builds: list[bool] = []
    monkeypatch.setattr(choose, "build_in_background", lambda: builds.append(True))
    return builds


def test_another_compiler_is_tried_after_one_that_failed(cache: Path, monkeypatch: Any, started: list[bool]) -> None:
    program = fake_compiler(cache, "exit 1")
    in_background(monkeypatch, program)
    choose.set_native("auto")
    assert not started
    use_compiler(monkeypatch, ["g++"])
    choose.set_native("auto")
    assert len(started) == 1
    fake_compiler(cache, "exit 1  # the next version")
    use_compiler(monkeypatch, program)
    choose.set_native("auto")
    assert len(started) == 2


@pytest.mark.parametrize(
    "end",
    [
        "kill -KILL $$",
        "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
        "echo 'clang: error: unable to execute command: Killed' >&2; exit 254",
        "echo 'x.s: error: No space left on device' >&2; exit 1",
        "exit 137",
    ],
)
def test_a_build_that_was_killed_is_tried_again(
    end: str, cache: Path, monkeypatch: Any, caplog: Any, started: list[bool]
) -> None:
    caplog.set_level(logging.INFO)
    program = fake_compiler(cache, end)
    for times in range(1, build.ATTEMPTS):
        in_background(monkeypatch, program)
        choose.set_native("auto")
        assert len(started) == times
        assert "being built in the background" in said(caplog)
    in_background(monkeypatch, program)
    choose.set_native("auto")
    assert len(started) == build.ATTEMPTS - 1
    assert "was ended before it was done" in said(caplog)


def test_what_others_have_noted_is_no_failure(cache: Path, started: list[bool], monkeypatch: Any) -> None:
    use_compiler(monkeypatch, ["g++"])
    for text in ("The native nodes could not be built.", "[1]", '{"compiler": "g++"}', "\xff"):
        build.note("failed", text)
        choose.set_native("auto")
    assert len(started) == 4
    assert cache.is_dir()


def test_a_full_disk_is_told(cache: Path, monkeypatch: Any) -> None:
    use_compiler(monkeypatch, fake_compiler(cache, "exit 1"))

    def full(*given: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", full)
    with pytest.raises(build.Killed, match="No space left on device"):
        build.build()


# -- what killed builds and older versions leave -----------------------------------------------------------------------


def test_the_next_build_removes_what_is_left_over(cache: Path, monkeypatch: Any) -> None:
    cache.mkdir(parents=True)
    (cache / "building-abc").mkdir()
    (cache / "building-abc" / "rlx_native.so").write_bytes(b"half of it")
    old, used, noted_only = "0" * 24, "1" * 24, "2" * 24
    for owner in (old, used):
        for kind in ("so", "json"):
            (cache / f"{owner}.{kind}").write_bytes(b"")
    (cache / f"{noted_only}.failed").write_text("")
    (cache / f".{old}.json.writing").write_text("")
    (cache / "notes.txt").write_text("of the user's own")
    (cache / f"{build.key()}.said").write_text("")
    for path in cache.iterdir():
        os.utime(path, (0, 0))
    os.utime(cache / f"{used}.json")  # as loading it does
    monkeypatch.setattr(build, "compiler", lambda: fake_compiler(cache, "exit 1"))
    with pytest.raises(RunFailed):
        build.build()
    left = {path.name for path in cache.iterdir()}
    assert left == {f"{used}.so", f"{used}.json", "notes.txt", f"{build.key()}.said", "lock"}


def test_a_build_that_is_loaded_counts_as_used(cache: Path, native_cache: Path) -> None:
    shutil.copytree(native_cache / "rlx" / "native", cache)
    record = cache / f"{build.key()}.json"
    os.utime(record, (0, 0))
    assert build.load() is not None
    assert record.stat().st_mtime > time.time() - 100


def test_the_lock_is_held_as_long_as_the_compiler_runs(cache: Path, tmp_path: Path) -> None:
    """A builder that is killed leaves its compiler at work, and another one has to wait for it."""
    fake_compiler(cache, f'echo > "{tmp_path}/at_work"; while [ ! -e "{tmp_path}/stop" ]; do sleep 0.01; done', "slow")
    environment = {**os.environ, "CXX": str(cache.parent / "slow")}
    code = "from rlx.nn.native import build; build.build()"
    builder = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        wait_for((tmp_path / "at_work").exists)
        builder.kill()
        builder.wait()
        assert build.being_built()
    finally:
        builder.kill()
        (tmp_path / "stop").touch()
    wait_for(lambda: not build.being_built())


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_lock_is_free_after_a_build_whatever_the_compiler_leaves_running(cache: Path, monkeypatch: Any) -> None:
    """`sccache` starts a server, which keeps every descriptor that it was given."""
    program = fake_compiler(cache, "sleep 5 >/dev/null 2>&1 & exit 1")
    monkeypatch.setattr(build, "compiler", lambda: program)
    with pytest.raises(RunFailed):
        build.build()
    assert not build.being_built()


@pytest.mark.parametrize("damage", ["cut", "no_sum", "open_to_all", "sum_of_another", "not_json", "list"])
def test_a_damaged_build_is_not_loaded(damage: str, cache: Path, native_cache: Path, caplog: Any) -> None:
    shutil.copytree(native_cache / "rlx" / "native", cache)
    file = cache / f"{build.key()}.so"
    about = file.with_suffix(".json")
    why = "its record is damaged"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
        why = "it is damaged"
    elif damage == "no_sum":
        about.unlink()
        why = "its record is missing"
    elif damage == "open_to_all":
        file.chmod(0o666)
        why = "others can write to it"
    elif damage == "sum_of_another":
        about.write_text('{"sha256": 3}')
        why = "it is damaged"
    else:
        about.write_text("{\n" if damage == "not_json" else "[1]")
    choose.set_native("auto")
    assert not is_native()
    assert f"is not used ({why})" in caplog.text
    assert "build-native builds it anew" in caplog.text


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_continuous_integration_does_not_do_without(ci: str, outcome: Any, monkeypatch: Any) -> None:
    """There, a missing compiler would look like success."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="There is no C"):
        do_without_native("There is no C++ compiler")


def test_the_checks_of_continuous_integration_build_them() -> None:
    lines = (Path(__file__).parents[2] / ".ci" / "run").read_text().splitlines()
    assert lines.index("export CI=true") < lines.index("make test")


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


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("across", [False, True])
def test_products_keep_to_their_numbers(across: bool) -> None:
    """What lies before and behind what they read or write is left alone."""
    for n in range(1, 35):
        rooms = [torch.full((3, 2, n), float("nan")), torch.full((3, n, n), float("nan")), torch.full((3, 2, n), 5.0)]
        x, y, to = (room[1:2] for room in rooms)
        x.fill_(2.0)
        y.copy_(torch.arange(n).expand(1, n, n))  # a row of 0, 1, 2, ... under another, or across them
        batched(x, y.mT if across else y, to)
        total = n * (n - 1.0)  # 2 * (0 + 1 + ... + (n - 1))
        assert torch.equal(to[0, 1], 5.0 + (torch.full((n,), total) if across else 2.0 * n * torch.arange(n))), n
        assert (rooms[2][[0, 2]] == 5.0).all(), n
