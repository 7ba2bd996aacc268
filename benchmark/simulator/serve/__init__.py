"""What a started engine does: a batching scheduler on a step clock, and the HTTP routes in front of it."""
