"""Prints the requirements of the named extras of pyproject.toml, one a line (the project itself is installed apart)."""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
print(*project["dependencies"], sep="\n")
for extra in sys.argv[1].split(","):
    print(*project["optional-dependencies"][extra], sep="\n")
