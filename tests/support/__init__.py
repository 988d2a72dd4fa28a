"""What several test files share; imported as `tests.support.x`.

`factory` makes synthesizers, plans and demonstrations; `scripts` has the task, the records and the language
model that they are made of, and `notes`, `tiny_models`, `servers` and `scripted_servers` other models and the
servers in front of them. `outputs` records what leaves the package; `neighbours` has the data sets to
compare. `set_ups` has sound and broken set-ups for audits. `twins`, `exact_curves`, `laws` and
`independent_accounting` are the mathematics once more. `processes` starts other Pythons. A module that is
named after a subject (`ledgers`, `resuming`) has what the tests of that subject share. Fixtures are in
conftest.py, or in a subject's module: a test module imports those, with the fixtures that they ask for, and
names them in `FIXTURES`, which tells linters that they are used.
"""
