"""The measures: a module for each thing that users want to know, and the catalog of all measures."""
