"""The agent's place in a PodVM image: the one file, its units, and the tree to build into the image."""
