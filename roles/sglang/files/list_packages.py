"""Every package of this environment, name==version, a line each."""

import importlib.metadata
import sys

lines = {f"{item.metadata['Name'].lower()}=={item.version}" for item in importlib.metadata.distributions()}
sys.stdout.write("\n".join(sorted(lines)) + "\n")
