"""What stands beside the client's own times: the engine's endpoints and log, and the GPUs."""
