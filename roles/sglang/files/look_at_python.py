"""This Python's release and, on a second line, the header that it lacks.

Triton compiles a launcher against Python.h; a distribution's Python comes without its headers.
"""

import sys
import sysconfig
from pathlib import Path

sys.stdout.write(f"{sys.version_info.major}.{sys.version_info.minor}\n")
# Where Triton looks: Debian's own scheme would name /usr/local.
header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")
if not header.exists():
    sys.stdout.write(str(header) + "\n")
