"""Whole federations in one process, in virtual time: tests of all parts together."""
