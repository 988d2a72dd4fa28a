"""Programs that run in the environments of the peers' packages, and import nothing of this project."""
