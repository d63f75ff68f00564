"""Tests that the default settings of each method are those of its paper or of its authors' code.

The values are written from the texts, method by method. A comment marks a value that no text gives or that differs.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from protofleet.methods.contract.catalog import load
from protofleet.methods.parts.local import LocalHyper
from tests.methods.contract.test_cost import METHODS

# FedLSA's epochs and batch, and the optimizer of FPL's code, from which FedLSA takes its splits. They hold for all
# methods whose texts give no training budget. No text clips gradients unless it says so.
COMMON = {"epochs": 5, "batch": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "clip": None}
# Our choices for methods that train nothing. The papers send the mean of a single sample too, and raw features.
EVERY_CLASS = {"least_samples": 1}  # As in the papers, in which a device sends a row of each class.
STATISTICS = {"features": "normalised", "least_samples": 5}
PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0}
SERVERS_SGD = {
    "server_batch": 64, "server_lr": 0.01, "server_momentum": 0.9, "server_weight_decay": 1e-5,
}  # fmt: skip

DEFAULTS = {
    "adcol": {
        "mu": 0.1, "average_models": False, "server_epochs": 3,
        **SERVERS_SGD,  # The batch is our choice.
        "clients": 0,  # Our choice: as many outputs as devices have taken part.
    },
    "apfl": {
        "alpha": 0.5,  # Our choice from the grid 0.25, 0.5, 0.75.
        "adaptive": False,  # The paper has both.
    },
    "ditto": {
        "lam": 1.0,  # Our choice from the grid 0.1, 0.5, 1, 2.
        "personal_epochs": None,  # None means epochs.
    },
    "fcclplus": {
        "epochs": 20, "batch": 128, "lr": 0.001, "public_lr": 0.001, "lr_last": 0.1, "temperature": 3.0,
        "tau": 0.02, "off_weight": 0.0051, "similarity": 3.0, "teacher": "own", "average": True,
        "fresh_adam": False, "train_mode": False,
    },
    # Our choice of server_lr in FedOpt's methods: the paper tunes it.
    "fedadagrad": {"server_lr": 0.01, "beta1": 0.0, "tau": 1e-3},
    "fedadam": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fed3r": {
        "lam": 0.01,  # The authors' value, but relative, which is our choice.
        "penalty": "relative", "intercept": True, "normalise": True, **STATISTICS,
    },
    "fedavg": {"final_fit": False},
    "fedavgm": {"server_momentum": 0.9, "server_lr": 1.0},
    "fedbn": {},
    "fedcof": {
        "gamma": 1.0,  # The authors' value, but relative, which is our choice.
        "penalty": "relative", "scatter": "within", "means_per_class": 1, **STATISTICS,
    },
    "feddap": {
        "epochs": 10, "batch": 32, "lambda1": 1.0, "lambda2": 1.0, "tau": 0.02, "fusion_tau": 0.001,
        "domains": (), "least_samples": 5,
    },
    "feddistill": {**EVERY_CLASS, "lam": 1.0, "proto_source": "training", "raw_targets": False},
    "feddyn": {"momentum": 0.0, "clip": 10.0, "alpha": 0.01, "alpha_scale": "none", "report": "server"},
    "fedga": {"gap": "accuracy", "when": "next", "step": 0.2},
    "fedgen": {
        "generator": "trained", "noise": 32, "hidden": 512, "server_steps": 100, "server_batch": 10,
        # The authors' value; the others are HtFLlib's, whose 0.1 is for a generator that no device receives.
        "server_lr": 3e-4,
    },
    "fedgh": {
        "server_epochs": 100, "server_lr": 0.01, "server_batch": 10,  # HtFLlib's; PFLlib has 1 epoch at rate 1.
        "replay": True,  # Our choice; in the paper, the server learns from the rows of a round.
        "least_samples": 5,
    },
    "fedgram": {"rank": 24, "bits": 8, "lam": None, "form": "factor", **STATISTICS},  # The method has no paper.
    "fedheal": {"threshold": 0.3, "beta": 0.4, "table_bytes": 1 << 30},  # The last is our choice.
    "fedhp": {**EVERY_CLASS,
        "weight_decay": 1e-4, "lam": 0.1, "proto_lr": 0.005, "lh_reduction": "sum", "aggregation": "normalised",
        "final_fit": True, "reset_adam": False, "init_steps": 1000, "init_lr": 0.1, "init_momentum": 0.9,
        "init_weight_decay": 1e-4,
    },
    "fedkd": {
        "clip": 10.0,  # HtFLlib's value, for each network.
        "kl": "classes", "targets": "fixed", "travel": "update", "energy_first": 0.95, "energy_last": 0.98,
    },
    "fedlsa": {
        "tau": 0.1, "alpha": 0.02, "lam": 0.1, "server_epochs": 500,
        "server_lr": 0.1,  # The paper does not print it.
        "anchors_first_round": "pretrain", "separation": "inside", "use_sep": True, "com": "vmf",
    },
    "fedncm": {"metric": "cosine", **STATISTICS},
    "fednh": {**EVERY_CLASS,
        "clip": 10.0, "rho": 0.9, "scale": 1.0, "fixed_scale": False, "lr_decay": 0.99,
        "final_fit": False,  # FedHP's comparison has a final fit; FedNH's own text has none.
    },
    "fednova": {},
    "fedpall": {**EVERY_CLASS,
        **PLAIN_SGD, "classifier": "paper", "mu": 0.7, "delta": 0.3, "tau": 3.0, "kl": "paper",
        "infonce": "standard", "use_kl": True, "use_infonce": True, "use_global_classifier": True,
        "alpha_low": 0.8, "alpha_high": 1.0, "alpha_round": 2, "mask": "bernoulli", "beta": 0.9,
        "noise": 0.0,  # Our choice.
        "normalise_local_protos": False, "features": "eval", "amplifier": "eval",
        "clients": 0,  # Our choice, as for ADCOL.
        "server_epochs": 1, **SERVERS_SGD,  # The batch is our choice.
    },
    "fedper": {},
    "fedpcl": {"tau": 0.07, "least_samples": 5},  # The temperature is our choice.
    "fedpft": {
        "parts": 1, "covariance": "spherical",
        "server_epochs": 50, "server_batch": 32, "server_lr": 1e-4,
        "most_drawn": 100_000,  # Our choice; the paper has no limit.
        **STATISTICS,
    },
    "fedplcc": {**EVERY_CLASS,
        "epochs": 10,
        "batch": 32,  # From FedPLVM's code; the text has none.
        "alpha": 0.5, "tau": 0.07, "phi": 0.5, "lambda1": 100.0, "lambda2": None, "negative": "clamp",
        "weighted_centroid": False, "use_weights": True, "use_contra": True, "use_corr": True,
    },
    "fedplvm": {**EVERY_CLASS,
        "epochs": 2, "batch": 32, "momentum": 0.5, "alpha": 0.25, "tau": 0.07, "lam": 100.0,
        "negative": "clamp",
    },
    "fedproto": {**EVERY_CLASS,
        "lam": 1.0, "aggregation": "unweighted", "proto_source": "training", "inference": "prototype",
        "average_models": False, "final_fit": False,
    },
    "fedprox": {"mu": 0.01},
    "fedrep": {"head_epochs": None, "base_epochs": 1},
    "fedsa": {**EVERY_CLASS,
        "epochs": 1, "batch": 10, **PLAIN_SGD,
        "lambda1": None,  # 10 or 0.1, depending on the reading of L_R.
        "lambda2": 0.01, "lambda3": 1.0, "decay": 0.9999, "anchors": "projected", "regularisation": "samples",
        "mcl_on": "samples", "margin": "pairs", "cc_bias": True, "proto_source": "eval",
        "aggregation": "weighted", "inference": "prototype", "send_prototypes": True, "keep_prototypes": True,
    },
    "fedsr": {"c_l2r": 0.01, "c_cmi": 5e-4, "l2r": "norm"},
    "fedtgp": {**EVERY_CLASS,
        "lam": 10.0, "inference": "prototype", "proto_source": "eval", "margin": "nearest",
        "margin_limit": 100.0, "server_epochs": 100, "server_lr": 0.01, "server_batch": 10,
    },
    "fedyogi": {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fml": {"kl": "classes", "targets": "fixed", "alpha": 0.5, "beta": 0.5},
    "fpl": {**EVERY_CLASS, "epochs": 10, "tau": 0.02, "proto_source": "training"},
    "ghofl": {
        "head": "lda",  # Our choice; the paper compares the heads.
        "shrinkage": 0.05,
        "most_bytes": 16 << 20,  # Our choice; the paper has no limit.
        **STATISTICS,
    },
    "lgfedavg": {},
    "moon": {"mu": 1.0, "tau": 0.5},
    "perfedavg": {"beta": None},  # None means lr.
    "rucr": {**EVERY_CLASS,
        "mu": 0.15, "tau": 0.9, "rectify_rounds": 20, "write_head": False, "virtual": 100, "lam_low": 0.35,
        "lam_high": 0.95, "head_epochs": 50, "head_batch": 256, "head_lr": 0.01,
    },
    "scaffold": {"momentum": 0.0, "weights": "uniform", "send_controls": False},
    "singleset": {},
    "tinyproto": {
        "epochs": 1, "batch": 32, "lam": 10.0, "ratio": 10.0, "aps": True,
        # Our choices: the authors have 0.00015 for CIFAR-10, no bound, and the features seen in training.
        "a": None, "largest_feature": 1000.0, "proto_source": "eval",
        "inference": "prototype", "least_samples": 5,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_the_default_settings_are_those_of_the_paper_or_the_code_of_its_authors(name):
    common = COMMON if issubclass(load(name).Hyper, LocalHyper) else {}
    assert asdict(load(name).Hyper()) == {**common, **DEFAULTS[name]}


def test_the_table_contains_all_methods():
    assert sorted(DEFAULTS) == METHODS
