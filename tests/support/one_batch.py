"""llama.cpp the wrong way, as a control."""

from __future__ import annotations

import numpy as np

from tests.support import inside


class OneBatch:
    """The wrong way, as a control: all prompts in one decode call, in one unified KV buffer."""

    def __init__(self, backend):
        self._model = model = inside.model(backend)
        self._library = library = model.library
        parameters = library.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.n_batch, parameters.n_ubatch = 4096, 80, 4096, 512
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = True
        self._context = library.llama_init_from_model(model.handle, parameters)
        self._batch = library.llama_batch_init(4096, 0, 1)

    def next_token_logprobs(self, prompts, support=None):
        library, batch = self._library, self._batch
        library.llama_memory_seq_rm(library.llama_get_memory(self._context), -1, -1, -1)
        last, count = [], 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                batch.token[count], batch.pos[count] = token, position
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, sequence
                batch.logits[count] = position == len(prompt) - 1
                count += 1
            last.append(count - 1)
        batch.n_tokens = count
        assert library.llama_decode(self._context, batch) == 0
        size = self._model.vocabulary_size
        rows = [
            np.ctypeslib.as_array(library.llama_get_logits_ith(self._context, index), shape=(size,)).copy()
            for index in last
        ]
        return np.stack(rows) if support is None else np.stack(rows)[:, support]

    def close(self):
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
