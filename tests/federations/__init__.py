"""Whole federations in one process, on simulated time: what holds for every part of them together."""
