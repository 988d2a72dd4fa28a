"""Measurements, run from the root: one module for each question that a page of docs/results answers.

| question | module | page |
|---|---|---|
| how fast are the core and the accountant? | `core`, `accounting` | core.md |
| what does a model in process cost, and servers? | `backends` | backends.md |
| what does the ledger cost, and what survives? | `ledger`, `ledger_rounds`, `postgresql` | ledger.md |
| how much memory do many records take? | `records` | |
| do the papers' figures hold? | `reproduce` | accounting.md |
| how close does each mechanism stay to the noiseless token? | `mechanisms`, `vectors` | mechanisms.md |
| how good are the demonstrations in use? | `utility`, `batched`, `models` | utility.md |
| is a peer better? | `peers`, `asking` | comparison.md |
| what can poisoned records achieve? | `poisoned` | results/poisoned.md |
| do the tests notice faults? | `faults` | |

`pages` and `readme` make the tables of pages from the raw rows in bench/results. Experiments that are finished have
their rows there and no module: their page names the commit that has it last. The package imports nothing of the tests,
but for `faults`.
"""
