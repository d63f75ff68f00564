"""One TOML file for each experiment: the demo, and each paper's tables. This file puts them into the package."""
