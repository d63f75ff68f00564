"""Federated learning for fleets of edge devices over MQTT. Its parts are imported by name: protofleet.methods."""
