"""`python -m harvest_console.cli`, for where the script is not on the path."""

from harvest_console.cli.root import main

main()
