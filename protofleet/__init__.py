"""Federated learning for fleets of edge devices over MQTT, with every byte counted.

The public names are the names in `__all__` and the further names in docs/python.md. All other names may change
without notice. A name is imported when it is first used, so `protofleet --help` does not wait for torch. The types of
the names are in `__init__.pyi`: imports here would be circular, because all our modules import this module first.
"""

from importlib import import_module as _import_module

_PLACES = {
    "Ask": "methods.contract.base:Ask",
    "Averaged": "methods.contract.averages:Averaged",
    "ClientHalf": "methods.contract.base:ClientHalf",
    "Comparison": "lab.api.comparison:Comparison",
    "Cost": "methods.contract.cost:Cost",
    "Data": "edge_client.data.own:Data",
    "DataRequest": "edge_client.data.own:DataRequest",
    "DivergedError": "coordinator.server.diverged:DivergedError",
    "LocalHyper": "methods.parts.local:LocalHyper",
    "Member": "methods.contract.base:Member",
    "Method": "methods.contract.base:Method",
    "Model": "lab.api.model:Model",
    "Net": "methods.nets.base:Net",
    "Numbers": "methods.contract.cost:Numbers",
    "Payload": "methods.contract.base:Payload",
    "Reply": "methods.contract.base:Reply",
    "Result": "lab.api.results:Result",
    "Round": "methods.contract.base:Round",
    "RunError": "runtime.command.errors:RunError",
    "Samples": "methods.contract.base:Samples",
    "ServerHalf": "methods.contract.base:ServerHalf",
    "SettingsError": "protocol.settings.reader:SettingsError",
    "Sizes": "methods.contract.cost:Sizes",
    "TensorSpec": "methods.contract.wants:TensorSpec",
    "compare": "lab.api.comparison:compare",
    "eight_bytes": "methods.contract.cost:eight_bytes",
    "load_model": "lab.api.model:load_model",
    "load_weights": "methods.parts.weights:load_weights",
    "network": "methods.nets.own:network",
    "run": "lab.api.run:run",
    "weight_wants": "methods.parts.weights:weight_wants",
    "weighted_mean": "methods.parts.averaging:weighted_mean",
    "weights_of": "methods.parts.weights:weights_of",
}
__all__ = [
    "Ask",
    "Averaged",
    "ClientHalf",
    "Comparison",
    "Cost",
    "Data",
    "DataRequest",
    "DivergedError",
    "LocalHyper",
    "Member",
    "Method",
    "Model",
    "Net",
    "Numbers",
    "Payload",
    "Reply",
    "Result",
    "Round",
    "RunError",
    "Samples",
    "ServerHalf",
    "SettingsError",
    "Sizes",
    "TensorSpec",
    "compare",
    "eight_bytes",
    "load_model",
    "load_weights",
    "network",
    "run",
    "weight_wants",
    "weighted_mean",
    "weights_of",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(
            f"module 'protofleet' has no public {name!r}; the public names are {', '.join(__all__)}"
        )
    module, _, thing = _PLACES[name].partition(":")
    found = getattr(_import_module(f"protofleet.{module}"), thing)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
