"""Prints the version of klambda-cli from the output of `cargo metadata`."""

import json
import sys

packages = json.load(sys.stdin)["packages"]
print(next(package["version"] for package in packages if package["name"] == "klambda-cli"))
