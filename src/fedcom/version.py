"""The version, in the one place that everything else reads it from."""

VERSION = "0.2.0"
_major, _minor, *_ = VERSION.split(".")
SERIES = (int(_major), int(_minor))  # versions that differ in the rest only compute the same
