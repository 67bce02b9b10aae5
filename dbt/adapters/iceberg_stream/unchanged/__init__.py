"""`skip_unchanged`: whether a model is what its last build left, from the same code and inputs."""
