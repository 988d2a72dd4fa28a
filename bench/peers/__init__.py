"""Every peer beside dpfewshot, on one machine with one model and one budget: `make peers DATA=... STORE=...`.

    python -m bench.peers DATA STORE [--only speed ...]
    python -m bench.peers --page

Each measurement appends lines to bench/results/peers.jsonl, and each cell of accuracy to peers-accuracy.jsonl beside
it; what is there is not measured again. `--page` writes docs/comparison.md and its plots from them. Packages of peers
live in environments of their own under STORE.
"""
