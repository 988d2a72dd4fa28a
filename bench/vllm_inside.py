"""vLLM's class `LLM` for bench/vllm_speed.py: `PYTHON-WITH-VLLM vllm_inside.py FOLDER`; a JSON line a draw on standard input."""

from __future__ import annotations

import json
import sys

from vllm import LLM, SamplingParams


def main(folder: str) -> None:
    """Answers draws, one sequence at a time and without cached prefixes, as docs/how-to/servers.md starts the server."""
    model = LLM(
        folder,
        max_model_len=512,
        max_num_seqs=1,
        enable_prefix_caching=False,
        enforce_eager=True,
        max_logprobs=-1,
    )
    for line in sys.stdin:
        prompts, support = json.loads(line)
        chosen = SamplingParams(temperature=1.0, max_tokens=1, logprob_token_ids=support)
        answers = model.generate([{"prompt_token_ids": prompt} for prompt in prompts], chosen, use_tqdm=False)
        rows = [[answer.outputs[0].logprobs[0][token].logprob for token in support] for answer in answers]
        print("answered", len(rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
