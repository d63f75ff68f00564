import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofleet.lab.leakage.maths.gradients import (
    gradient_sent,
    inputs_of_first_layer,
    labels_from_bias,
    matched_images,
    nearest_candidates,
)
from protofleet.lab.leakage.maths.recovery import psnr
from protofleet.methods.nets.base import initialised_from

CLASSES = 5


def network(*layers, seed=0):
    with initialised_from(seed):
        return nn.Sequential(*(make() for make in layers))


def perceptron(seed=0):
    return network(lambda: nn.Linear(36, 24), nn.ReLU, lambda: nn.Linear(24, CLASSES), seed=seed)


def gradients(net, x, y, graph=False):
    return torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()), create_graph=graph)


def images(count, seed=0, shape=(36,)):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.mark.parametrize("scale", [1.0, -0.01])
def test_one_image_is_found_from_the_gradients_of_a_first_layer_at_any_scale(scale):
    x = images(1)
    weight, bias, *_ = (
        scale * part.double().numpy() for part in gradients(perceptron(), x, torch.tensor([2]))
    )
    found = nearest_candidates(inputs_of_first_layer(weight, bias), x.double().numpy())
    assert psnr(found, x.double().numpy())[0] > 80


def test_candidates_from_other_images_match_no_better_than_the_control():
    """A choice among candidates always seems to find something, so the control chooses in the same way."""
    y = torch.arange(4)
    weight, bias, *_ = (part.double().numpy() for part in gradients(perceptron(), images(4), y))
    candidates = inputs_of_first_layer(weight, bias)
    own, other, third = (images(4, seed).double().numpy() for seed in (0, 1, 2))
    near, far, control = (
        psnr(nearest_candidates(candidates, one), one).mean() for one in (own, other, third)
    )
    assert near > far + 5 and far == pytest.approx(control, abs=1.5)
    assert far > psnr(candidates[:4], other).mean() + 0.5, (
        "the test would not notice a control without a choice"
    )


@pytest.mark.parametrize("batch", [[3], [1, 4], [2, 2, 0], [0, 1, 2, 3], [4, 4, 4, 4]])
def test_the_labels_of_a_small_batch_are_found_from_the_bias_of_the_head(batch):
    for seed in range(5):
        net, y = perceptron(seed), torch.tensor(batch)
        bias = gradients(net, images(len(batch), seed), y)[-1].double().numpy()
        guess = net(images(100, 99)).softmax(1).mean(0).detach().double().numpy()
        assert labels_from_bias(bias, len(batch), guess).tolist() == sorted(batch)


def test_the_label_of_one_image_is_found_with_a_wrong_guess():
    for label in range(CLASSES):
        bias = gradients(perceptron(), images(1), torch.tensor([label]))[-1].double().numpy()
        assert labels_from_bias(bias, 1, np.eye(CLASSES)[label - 1]).tolist() == [label]


def test_the_gradient_of_one_step_with_weight_decay_is_recovered():
    w, g = torch.randn(2, 7, generator=torch.Generator().manual_seed(0)).double()
    end = w - 0.1 * (g + 0.01 * w)
    assert torch.allclose(gradient_sent(w, end, 0.1, 1.0, 0.01), g)
    assert not torch.allclose(gradient_sent(w, end, 0.1, 1.0, 0.0), g)


def smooth():
    """Return a small convolutional network without steps in its slope."""
    return network(
        lambda: nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid, nn.Flatten, lambda: nn.Linear(6 * 36, CLASSES)
    )


def test_an_image_is_found_from_its_gradient_and_not_from_the_gradient_of_another_image():
    net, y = smooth(), torch.tensor([1])
    ramp = torch.linspace(-0.8, 0.8, 6)
    x, other = (ramp + ramp.reshape(6, 1)).reshape(1, 1, 6, 6) / 2, (-ramp).expand(1, 1, 6, 6)

    def decibels(sent):
        found = matched_images(lambda one: gradients(net, one, y, graph=True), sent, x.shape, steps=80)
        return psnr(found.images.reshape(1, -1).double().numpy(), x.reshape(1, -1).double().numpy())[0]

    right, wrong = decibels(gradients(net, x, y)), decibels(gradients(net, other, y))
    assert right > 18 and right > wrong + 8
