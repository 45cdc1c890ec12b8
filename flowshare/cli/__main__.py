"""`python -m flowshare.cli`: the same as the `flowshare` command."""

from flowshare.cli import main

main()
