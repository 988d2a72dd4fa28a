"""Faults of the token loop, of strata and of plans."""

from tests.seeded_faults.fault import Fault

WIRING = "tests/integration/test_wiring.py"

LOOP_AND_PARTS = (
    Fault(
        "dpfewshot/generation/token_loop.py",
        "winner = release.token(logprobs, public_row[support], permit)",
        "winner = release.token(\n"
        "    logprobs, logprobs.mean(axis=0) if suffixes else public_row[support], permit)",
        "centres are public",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "support = draft.support(release.support, public_row, whole - len(released))",
        "support = draft.support(release.support, _answer(private, len(suffixes), None).mean(axis=0)\n"
        "    if suffixes else public_row, whole - len(released))",
        "supports are public",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "subsets = units.of(sampler.draw(units.sizes))",
        "once = locals().get('once') or sampler.draw(units.sizes)\n                subsets = units.of(once)",
        "every block has a draw of its own",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/token_loop.py",
        "permit = charge()  # before it draws",
        "permit = locals().get('permit') or charge()",
        "every draw is charged",
        "tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/generation/draft.py",
        "repeating(self._fields[-1], size) - self._ends if size",
        "repeating(self._fields[-1], size) if size",
        "the rule against repetition leaves every end of a field",
        "tests/property/test_repetition.py",
    ),
    Fault(
        "dpfewshot/generation/repetition.py",
        "range(len(tokens) - size + 1)",
        "range(len(tokens) - 2 * size + 1)",
        "no n-gram comes twice",
        "tests/property/test_repetition.py",
    ),
    Fault(
        "dpfewshot/generation/shaped_draft.py",
        "allowed[rule(public_logprobs[allowed], frozenset())]",
        "np.array(rule(public_logprobs, frozenset()))",
        "only tokens that the schema allows are candidates",
        "tests/property/test_schema.py",
    ),
    Fault(
        "dpfewshot/backends/token_automaton.py",
        "bound = max(most, self.left(state)) - 1",
        "bound = max(99, self.left(state)) - 1",
        "a text that matches its schema ends within its tokens",
        "tests/property/test_schema.py",
    ),
    Fault(
        "dpfewshot/backends/token_automaton.py",
        "self._lengths + rows[-1][self._to]",
        "self._lengths",
        "a prompt with what a schema forces fits into the context",
        "tests/property/test_schema.py",
    ),
    Fault(
        "dpfewshot/tasks/automaton.py",
        r"""index = Index(rf"\x00(?:{expression})\x00", letters)""",
        r"""index = Index(rf"\x00(?:{expression})\x00?", letters)""",
        "no alternative of a schema hides another",
        "tests/unit/test_json_schema.py",
    ),
    Fault(
        "dpfewshot/tasks/expressions.py",
        "allowed = _without(asked, forbidden)",
        "allowed = asked",
        "what matches a pattern is the inside of a JSON string",
        "tests/property/test_expressions.py",
    ),
    Fault(
        "dpfewshot/tasks/json_schema.py",
        """if "type" in used and not all(""",
        """if "type" in used and not any(""",
        "an enumerated value has the type beside it",
        "tests/unit/test_json_schema.py",
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "return PoissonSampler(stratum.sampling_rate, prompts, records, self.random_source)",
        "return PoissonSampler(max(each.sampling_rate for each in self.plan.strata), prompts, records,\n"
        "    self.random_source)",
        "a label is sampled at its own rate",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "return start_release(self.mechanism, stratum.draws, stratum.noise_multiplier, self.random_source)",
        "return start_release(self.mechanism, stratum.draws.__class__(**(vars(stratum.draws) | {'row_change':\n"
        "    type(stratum.draws.row_change).ADDED})), stratum.noise_multiplier, self.random_source)",
        "the noise is that of N records in a prompt",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/units.py",
        "return {None: units(records)}",
        "return {None: units([type(one)(one.text, one.label) for one in records])}",
        "free labels: all records of a unit are one",
        WIRING,
    ),
    Fault(
        "dpfewshot/generation/set_up.py",
        "members = disjoint_parts(len(units), parts, self.random_source)",
        "members = disjoint_parts(len(units), 1) * parts",
        "disjoint parts are disjoint",
        "tests/integration/test_draws.py tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/generation/strata.py",
        "        self.reservation = None\n        self.unrecorded = {}\n",
        "        self.unrecorded = {}\n",
        "a forked child does not draw from its parent's plan",
        "tests/integration/test_service.py",
    ),
    Fault(
        "dpfewshot/planning/plan.py",
        "return functools.reduce(Amount.at_least, costs) if costs else None",
        "return min(costs) if costs else None",
        "a plan states the greatest epsilon of its parts",
        "tests/unit/test_plans.py",
    ),
    Fault(
        "dpfewshot/synthesizer.py",
        "sound = states_invariance(backend) and self._random_source is None and accounting == CERTIFIED",
        "sound = states_invariance(backend) and accounting == CERTIFIED",
        "what was made with a seed says certified=False",
        "tests/integration/test_synthesizer.py",
    ),
    Fault(
        "dpfewshot/generation/draw_task.py",
        "permit = task.draw.charge()",
        "permit = Permit(task.draw.tokens_per_draw, task.draw.noise_multiplier)",
        "a worker charges its draw",
        "tests/integration/test_executors.py",
    ),
    Fault(
        "dpfewshot/generation/draw_task.py",
        "set_up.check_invariance()  # here, since the public answer may have shown that the backend varies",
        "None",
        "a worker draws nothing on a backend that mixes batches, even if a public answer was the first to show it",
        "tests/integration/test_executors.py tests/integration/test_executors_faults.py",
    ),
    Fault(
        "dpfewshot/generation/worker_backend.py",
        "_check_weights(weights_of(made), self.weights)",
        "None",
        "a worker draws with the caller's form of the weights",
        "tests/integration/test_worker_backends.py",
    ),
    Fault(
        "dpfewshot/generation/workers.py",
        "if isinstance(found, Drawn):",
        "if found is not None:",
        "a draw whose answer is wrapped counts as made",
        "tests/integration/test_executors_faults.py",
    ),
    Fault(
        "dpfewshot/budget/reservation.py",
        "told = DrawCounts((self._left[part] + 1,), lease)",
        "told = DrawCounts((self._left[part],), lease)",
        "a worker that dies before it charges costs no draw",
        "tests/integration/test_executors.py",
    ),
    Fault(
        "dpfewshot/generation/worker_backend.py",
        "mine = (os.getpid(), self.key, self.weights, self.model)",
        "mine = (os.getpid(), None, self.weights, self.model)",
        "a worker uses the backend of its own run",
        "tests/contract/test_executors.py",
    ),
    Fault(
        "dpfewshot/generation/worker_backend.py",
        "_check_no_client(made)",
        "pass",
        "one client sends all requests to a server",
        "tests/integration/test_worker_backends.py",
    ),
)
