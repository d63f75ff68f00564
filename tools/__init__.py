"""Build tools of the repository. No wheel contains them. They may import every room, but no room imports them."""
