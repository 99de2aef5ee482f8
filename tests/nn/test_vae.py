"""The behaviour model: its loss by hand, what is clipped when, and a fit of a known behaviour."""

from __future__ import annotations

import math

import pytest
import torch

from rlx.nn import Adam
from rlx.nn.vae import BLOCK_ROWS, VAE, by_blocks, vae_loss


def test_loss_by_hand() -> None:
    action, reconstruction = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    mean, log_std = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, math.log(2.0)]])
    loss, metrics = vae_loss(action, reconstruction, mean, log_std, kl_weight=0.5)
    # KL of N(2, 1): 2; of N(0, 2): (4 - 1) / 2 - log 2
    kl = (2.0 + 1.5 - math.log(2.0)) / 2.0
    assert loss.item() == pytest.approx(1.0 + 0.5 * kl, rel=1e-6)
    assert {k: v.item() for k, v in metrics.items()} == {
        "loss/vae": pytest.approx(1.0 + 0.5 * kl),
        "vae/reconstruction": 1.0,
        "vae/kl": pytest.approx(kl),
    }
    assert not any(v.requires_grad for v in metrics.values())


def test_a_standard_normal_latent_costs_nothing() -> None:
    zero = torch.zeros(3, 2)
    assert vae_loss(zero, zero, zero, zero, kl_weight=7.0)[0].item() == 0.0


def test_latents_are_clipped_to_act_with_only() -> None:
    torch.manual_seed(0)
    vae = VAE(obs_dim=2, action_dim=3, hidden=[8])
    drawn = vae.draw(1000)
    assert drawn.shape == (1000, 6)
    assert drawn.abs().max().item() == 0.5
    seen = []
    decode = vae.decode
    vae.decode = lambda obs, latent: (seen.append(latent), decode(obs, latent))[1]  # type: ignore[method-assign]
    vae(torch.zeros(1000, 2), torch.zeros(1000, 3))
    assert seen[0].abs().max().item() > 1.0


@pytest.mark.parametrize(("bias", "expected"), [(100.0, 15.0), (-100.0, -4.0)])
def test_the_std_of_the_latent_is_bounded(bias: float, expected: float) -> None:
    vae = VAE(obs_dim=2, action_dim=1, hidden=[8])
    with torch.no_grad():
        vae.encoder.biases[-1].fill_(bias)
    assert vae.encode(torch.zeros(1, 2), torch.zeros(1, 1))[1].tolist() == [[expected, expected]]


def test_decoded_actions_are_before_their_tanh() -> None:
    vae = VAE(obs_dim=2, action_dim=1, hidden=[8])
    with torch.no_grad():
        vae.decoder.biases[-1].fill_(9.0)
        vae.decoder.weights[-1].zero_()
    assert vae.decode(torch.zeros(1, 2), torch.zeros(1, 2)).tolist() == [[9.0]]
    assert vae(torch.zeros(1, 2), torch.zeros(1, 1))[0].item() == pytest.approx(math.tanh(9.0))


def test_blocks_give_what_one_pass_gives() -> None:
    obs = torch.arange(7.0).unsqueeze(1)
    sizes = []

    def rows(block: torch.Tensor) -> torch.Tensor:
        sizes.append(len(block))
        return 2.0 * block.squeeze(1)

    assert by_blocks(rows, obs, candidates=1).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert by_blocks(rows, obs, candidates=BLOCK_ROWS // 3).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert sizes == [7, 3, 3, 1]
    by_blocks(rows, obs, candidates=10 * BLOCK_ROWS)
    assert sizes[4:] == [1] * 7


def test_learns_two_ways_to_act() -> None:
    """Behaviour of +-0.8 by a coin: samples come from both sides, none from the mean of them."""
    torch.manual_seed(0)
    vae = VAE(obs_dim=1, action_dim=1, hidden=[32, 32])
    optimizer = Adam(vae.parameters(), 3e-3)
    for _ in range(500):
        obs, action = torch.randn(128, 1), 0.8 * torch.randint(0, 2, (128, 1)).mul(2).sub(1).float()
        optimizer.minimize(vae_loss(action, *vae(obs, action), kl_weight=0.05)[0])
    drawn = torch.tanh(vae.decode(torch.randn(500, 1), vae.draw(500)))
    assert (drawn > 0.5).float().mean().item() == pytest.approx(0.5, abs=0.15)
    assert (drawn < -0.5).float().mean().item() == pytest.approx(0.5, abs=0.15)
