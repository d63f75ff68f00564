"""A run on all devices' data in one process is an upper bound, and its output says that it is not federated."""

import json

import pytest
import torch
import torch.nn.functional as F

from protofleet.cli.main import main
from protofleet.lab.local.centralised import local_settings, named, rounds, shards_of
from protofleet.lab.local.experiment import read_experiment
from protofleet.methods.contract.base import seeded
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.local.test_run import furnished

TWO = ["devices.count=2", "rounds=2", "compute='cpu'"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.chdir(furnished(tmp_path))
    yield tmp_path
    torch.set_num_threads(threads)


def test_one_model_learns_from_the_union_of_all_training_samples(place):
    experiment = read_experiment(place / "small.toml", TWO)
    shards, hyper = shards_of(experiment), local_settings(experiment)
    found = list(rounds(experiment, shards, hyper))
    x, y = (torch.cat([getattr(s.train, part) for _, s in sorted(shards.items())]) for part in "xy")
    model = experiment.plan.model()
    for number in (1, 2):
        order = seeded(experiment.seed, number, "centralised", "train")
        torch.randint(1 << 62, (), generator=order)  # a seed for dropout; this network has no dropout
        sgd = torch.optim.SGD(
            model.parameters(), lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay
        )
        for _ in range(hyper.epochs):
            for rows in torch.randperm(len(y), generator=order).split(hyper.batch):
                sgd.zero_grad()
                F.cross_entropy(model.train()(x[rows]), y[rows]).backward()
                sgd.step()
    right = [(model.eval()(s.test.x).argmax(1) == s.test.y).float().mean().item() for s in shards.values()]
    assert len(found) == 3 and found[-1].kind == "evaluation"
    assert found[-1].pooled["global"] == pytest.approx(sum(right) / len(right))
    assert found[0].pooled["global"] < found[-1].pooled["global"] > 0.9


def test_a_centralised_run_can_be_compared_and_is_marked_as_not_federated(place, capsys):
    sets = [word for change in TWO for word in ("--set", change)]
    assert main(["centralised", "small.toml", *sets, "--seeds", "1", "2"]) == 0
    said = capsys.readouterr().out
    assert "this is no federation" in said and "on the wire 0 B" in said
    folders = [place / "runs" / f"small-centralised-s{seed}" for seed in (1, 2)]
    summary = json.loads((folders[0] / "summary.json").read_text())
    assert summary["method"] == "centralised, not federated" and summary["payload"] == {"up": {}, "down": {}}
    assert "centralised, not federated" in (folders[0] / "report.html").read_text()
    assert main(["compare", *map(str, folders)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("small-centralised"))
    assert "centralised, not federated" in row and "global      2 " in row


def test_the_same_seed_gives_the_same_result_and_the_earlier_run_is_renamed(place):
    sets = [word for change in TWO for word in ("--set", change)]
    for _ in range(2):
        assert main(["centralised", "small.toml", "--fresh", *sets]) == 0
    one, other = (
        json.loads((place / "runs" / name / "summary.json").read_text())["views"]
        for name in ("small-centralised", "small-centralised.1")
    )
    assert one == other


def test_only_the_settings_of_local_training_are_used(place):
    sets = ["method.name='fedprox'", "method.mu=0.5", "method.lr=0.03", "method.epochs=7"]
    hyper = local_settings(read_experiment(place / "small.toml", sets))
    assert (hyper.lr, hyper.epochs) == (0.03, 7) and not hasattr(hyper, "mu")


def test_a_method_that_trains_nothing_is_refused(place):
    with pytest.raises(SettingsError, match="fedncm trains nothing: it has no setting epochs, so it has no"):
        local_settings(read_experiment(place / "small.toml", ["method.name='fedncm'"]))


def test_the_name_of_a_centralised_run_contains_the_name_of_the_experiment(place):
    experiment = read_experiment(place / "small.toml", [])
    assert named(experiment).name == "small-centralised"
    assert (named(experiment, 3).name, named(experiment, 3).seed) == ("small-centralised-s3", 3)


def test_a_wrong_setting_is_refused_with_its_name(place, capsys):
    assert main(["centralised", "small.toml", "--set", "method.lr=-1"]) == 2
    assert "method.lr is -1" in capsys.readouterr().err


def test_a_finished_run_with_the_same_settings_is_not_run_again(place, capsys):
    sets = [word for change in TWO for word in ("--set", change)]
    assert main(["centralised", "small.toml", *sets]) == 0
    assert main(["centralised", "small.toml", *sets]) == 0
    assert "small-centralised has finished already" in capsys.readouterr().out
    assert main(["centralised", "small.toml", *sets, "--set", "method.lr=0.02"]) == 0
    assert (place / "runs" / "small-centralised.1").exists()


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(place, capsys):
    sets = [word for change in [*TWO, "method.lr=1000", "rounds=9"] for word in ("--set", change)]
    assert main(["centralised", "small.toml", *sets]) == 4
    assert "the run has diverged: the loss is not finite" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused_with_a_fix(place, capsys):
    (place / "file").write_text("")
    assert main(["centralised", "small.toml", "--runs", "file/runs"]) == 2
    said = capsys.readouterr().err
    assert (
        "cannot be made: Not a directory; name another folder with --runs" in said and "Traceback" not in said
    )


def test_missing_data_folders_are_all_named_before_the_run_starts(place, capsys, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_DATA", str(place / "nowhere"))
    (place / "two.toml").write_text(
        'name = "two"\nrounds = 1\nmethod = { name = "fedavg" }\n'
        '[domains]\nusps = { source = "usps" }\nsvhn = { source = "svhn" }\n'
    )
    for command in ("run", "centralised"):
        assert main([command, "two.toml"]) == 1
        said = capsys.readouterr().err
        assert f"{place / 'nowhere' / 'usps'} (usps), {place / 'nowhere' / 'svhn'} (svhn)" in said
    assert not (place / "runs").exists()
