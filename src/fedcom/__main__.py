"""python -m fedcom."""

from fedcom.cli import main

main()
