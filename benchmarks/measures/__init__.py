"""The measures: a module for each question that a user could ask, and the catalog of all."""
