"""`python -m saccade`, which `torchrun -m saccade` needs."""

from saccade.cli import main

if __name__ == "__main__":
    main()
