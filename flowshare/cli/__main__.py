"""`python -m flowshare.cli`: the same as the `flowshare` command."""

from flowshare.entry import main

main()
