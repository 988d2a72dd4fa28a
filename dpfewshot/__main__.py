"""`python -m dpfewshot`: the command line, for environments whose scripts are not on the path."""

from dpfewshot.cli import main

main()
