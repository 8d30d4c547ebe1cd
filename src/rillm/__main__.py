"""`python -m rillm` is the command `rillm`."""

from rillm.cli import main

main()
