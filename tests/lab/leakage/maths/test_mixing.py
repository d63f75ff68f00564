import numpy as np
import pytest
import torch

from protofleet.lab.leakage.maths.mixing import unmixed
from protofleet.lab.leakage.maths.recovery import r2
from protofleet.methods.contract.base import seeded
from protofleet.methods.maths.adversary import MASKS, mixed
from protofleet.methods.maths.means import class_means

N, D, C = 120, 64, 6


def upload(alpha, beta, known=C, noise=0.0, mask="bernoulli"):
    """Return the rows that a device of FedPall sends, what the coordinator knows, and the truth."""
    generator = seeded("mixing", alpha, beta)
    z, y = torch.randn(N, D, generator=generator).relu(), torch.arange(N) % C
    common = torch.randn(C, D, generator=generator).relu()
    held = torch.arange(C) < known
    kept = MASKS[mask](D, beta, generator)
    r = mixed(z, y, common, held, alpha) + noise * torch.randn(N, D, generator=generator)
    means, _ = class_means(z, y, C)
    arrays = (part.double().numpy() for part in (kept * r, common, means, z))
    rows, common, means, z = arrays
    return rows, y.numpy(), common, held.numpy(), means, z, kept.numpy() > 0


@pytest.mark.parametrize("mask", ["bernoulli", "exact"])
@pytest.mark.parametrize("alpha", [0.8, 0.87, 0.99, 1.0])
def test_the_share_the_mask_and_all_unmasked_columns_are_found_exactly(alpha, mask):
    *given, z, kept = upload(alpha, 0.9, mask=mask)
    found = unmixed(*given)
    assert found.share == pytest.approx(alpha, abs=1e-6) and found.residual < 1e-6
    assert (found.kept == kept).all()
    assert np.abs(found.features[:, kept] - z[:, kept]).max() < 1e-5
    assert r2(found.features, z) > kept.mean() - 0.03


def test_a_class_without_a_common_row_is_not_mixed():
    *given, z, kept = upload(0.85, 1.0, known=3)
    assert np.abs(unmixed(*given).features - z)[:, kept].max() < 1e-5
    *given, z, kept = upload(0.85, 1.0, known=0)
    found = unmixed(*given)
    assert found.share == 1 and np.allclose(found.features, z)


def test_noise_on_the_rows_leaves_a_residual_and_hides_the_features():
    *given, z, _ = upload(0.85, 0.9, noise=2.0)
    found = unmixed(*given)
    assert found.residual > 0.05
    assert r2(found.features, z) < 0


def test_rows_that_belong_to_other_class_means_leave_a_residual():
    rows, y, common, known, means, _, _ = upload(0.85, 0.9)
    assert unmixed(rows, y, common, known, np.roll(means, 1, axis=0)).residual > 0.01
