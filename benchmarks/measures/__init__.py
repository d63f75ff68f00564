"""The measures: a module for each question of users, and the catalog of all measures."""
