"""Faults of backends, of prompts, of records and of what is told."""

from bench.seeded_faults.fault import Fault

ENDS = (
    Fault(
        "dpfewshot/backends/servers/probe.py",
        "beginning[: size - ENDING] + prompt[-ENDING:] if place",
        "(prompt * size)[:size] if place",
        "a prefix that prompts of one request share is seen by the probe",
        "tests/contract/test_server_dialects.py",
    ),
    Fault(
        "dpfewshot/backends/servers/probe.py",
        "row.tobytes() == alone[place].tobytes() for row,",
        "np.abs(row - alone[place]).max() <= 1e-6 for row,",
        "a prompt has the same bits alone and among others",
        "tests/contract/test_server_dialects.py tests/contract/test_server_load.py",
    ),
    Fault(
        "dpfewshot/backends/servers/llama_server.py",
        '"cache_prompt": False,',
        '"cache_prompt": True,',
        "no answer depends on the prompts before",
        "tests/contract/test_server_network.py tests/contract/test_server_load.py",
    ),
    Fault(
        "dpfewshot/backends/servers/llama_server.py",
        '"parse_special": False}',
        '"parse_special": True}',
        "special tokens in private text are never parsed",
        "tests/contract/test_servers.py",
    ),
    Fault(
        "dpfewshot/backends/servers/replicas.py",
        "places[replica_of(prompt, len(places))].append(place)",
        "places[place % len(places)].append(place)",
        "a prompt's replica follows from its own tokens",
        "tests/contract/test_server_replicas.py",
    ),
    Fault(
        "dpfewshot/backends/servers/replicas.py",
        "if len(outcomes) > 1 else None",
        "if len(outcomes) < 1 else None",
        "a dead replica fails calls that have no prompt there",
        "tests/contract/test_server_replica_failures.py",
    ),
    Fault(
        "dpfewshot/backends/servers/asker.py",
        "self._transport.alone(everywhere=True):",
        "self._transport.alone(everywhere=False):",
        "a prompt is blamed only while no replica computes another",
        "tests/contract/test_server_replica_failures.py",
    ),
    Fault(
        "dpfewshot/prompts/writer.py",
        "if not is_failure(error) or may_pass(error):",
        "if not is_failure(error) or isinstance(error, BackendError):",
        "a record that cannot be tokenised is a null and no error",
        "tests/unit/test_prompts.py tests/integration/test_synthesizer_failures.py",
    ),
    Fault(
        "dpfewshot/prompts/writer.py",
        "return self.tokenizer.tokenize(line[: 16 * self.record_token_cap])[: self.record_token_cap]",
        "return self.tokenizer.tokenize(line[: 16 * self.record_token_cap])",
        "a record has a cap of its own",
        "tests/unit/test_prompts.py",
    ),
    Fault(
        "dpfewshot/values.py",
        "if len(found) > 1:",
        "if len(found) > 9:",
        "records of two label columns are not one partition",
        "tests/unit/test_columns.py",
    ),
    Fault(
        "dpfewshot/records/checks.py",
        "        columns=columns,\n",
        "",
        "a filtered list keeps its label column",
        "tests/unit/test_columns.py tests/integration/test_account_kinds.py",
    ),
    Fault(
        "dpfewshot/records/files.py",
        'raise InvalidRecords(f"{where}: is not JSON; put one object on each line") from None',
        'raise InvalidRecords(f"{where}: {line!r} is not JSON; put one object on each line") from None',
        "no message quotes a record",
        "tests/unit/test_records.py tests/integration/test_cli.py",
    ),
    Fault(
        "dpfewshot/generation/telemetry.py",
        '"error": type(error).__name__',
        '"error": str(error)',
        "no log and no span quotes an error",
        "tests/integration/test_telemetry.py",
    ),
    Fault(
        "dpfewshot/planning/population.py",
        "return len(units(records))",
        "return len(list(records))",
        "the command line's delta follows from what is declared public",
        "tests/integration/test_default_delta.py",
    ),
)
