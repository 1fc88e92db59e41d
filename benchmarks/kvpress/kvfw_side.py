"""The kvfw side. Runs in kvfw's virtual environment; see compare.py."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import torch
import transformers
from cases import ALL, MATCHED, PLAIN, WHOLE_RECENT, WHOLE_SINKS, Case
from resident import peak_bytes
from transformers import DynamicCache
from wire import CLOCKS, Answer, Request, serve

import kvfw
from kvfw.core.compose.budget import Amount
from kvfw.core.compress.compressor import Compressor, compressor
from kvfw.core.contracts.records import RowKey
from kvfw.core.state.observation import Needs, protect
from kvfw.core.state.state import KVState
from kvfw.model.embedded.folders import ensure_embedded
from kvfw.model.load.sentence import SentenceEncoder
from kvfw.model.run.decode import greedy
from kvfw.model.run.prefill import prefill
from kvfw.runner.execute.answers import Tools, answers, batches
from kvfw.runner.plan.prepare import Row
from kvfw.tasks.niah.niah import Niah


def bound(case: Case, slots: int, sinks: int, recent: int) -> Compressor:
    """The case's compressor."""
    return compressor(kvfw.parse(case.compose), Amount("slots", Fraction(slots)), sinks=sinks, recent=recent)


def needs_of(compressors: Sequence[Compressor]) -> Needs:
    """What one prefill has to observe for all of them."""
    return reduce(Needs.__or__, (by.needs for by in compressors), Needs())


def kept_positions(states: Sequence[KVState]) -> list[list[list[int]]]:
    """Positions kept, by layer and head."""
    return [[s.positions[0, h][s.valid[0, h]].long().tolist() for h in range(s.keys.shape[1])] for s in states]


class Side:
    """Holds the model; every method answers one kind of request."""

    def load(self, request: Request) -> Answer:
        """Loads the model from kvfw's own folder and names that folder and the versions."""
        self.clock = CLOCKS[request["clock"]]
        torch.set_num_threads(request["threads"])
        transformers.utils.logging.disable_progress_bar()
        folder = ensure_embedded("smollm2-135m")
        self.loaded = kvfw.load_model(str(folder), dtype="float32", device="cpu", attn_implementation="sdpa")
        # Both sides write as many tokens as they are asked for.
        self.loaded.model.generation_config.eos_token_id = None
        versions = {"kvfw": kvfw.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
        return {"folder": str(folder), "versions": versions}

    def prompts(self, request: Request) -> Answer:
        """Token ids of the task's prompts, question included."""
        made = []
        for tokens, depth in request["grid"]:
            (sample,) = Niah(contexts=(tokens,), depths=(depth,), seeds=1).samples(self.loaded.tokenizer)
            ids, answer = sample.context_ids + sample.turns[0].exact_ids, sample.turns[0].references[0]
            made.append({"tokens": tokens, "depth": depth, "ids": list(ids), "answer": answer})
        return {"prompts": made}

    def plain(self, request: Request) -> Answer:
        """A prefill without kvfw."""
        self.loaded.model.set_attn_implementation(request["attention"])
        ids = torch.tensor([request["ids"]])
        started = self.clock()
        output = self.loaded.model(input_ids=ids, cache=DynamicCache(), use_cache=True, logits_to_keep=1)
        seconds = self.clock() - started
        self.loaded.model.set_attn_implementation("sdpa")
        best = output.logits[0, -1].topk(5)
        return {"prefill_s": seconds, "best": best.indices.tolist(), "logits": best.values.tolist()}

    def _attached(self, case: Case, slots: int) -> Any:
        return kvfw.attach(
            self.loaded.model,
            case.compose,
            slots=slots,
            sinks=case.sinks,
            recent=case.recent,
            tokenizer=self.loaded.tokenizer,
        )

    def one(self, request: Request) -> Answer:
        """Prefill under ``attach``, what is held after it, and greedy tokens."""
        case, model, ids = ALL[request["case"]], self.loaded.model, torch.tensor([request["ids"]])
        with self._attached(case, request["slots"]) as cache:
            started = self.clock()
            output = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            prefill_s = self.clock() - started
            report = cache.report()
            kept = kept_positions([cache.state(i) for i in range(len(cache.layers))]) if request["look"] else []
            started = self.clock()
            tokens = [int(output.logits[0, -1].argmax())]
            while len(tokens) < request["new_tokens"]:
                output = model(input_ids=torch.tensor([tokens[-1:]]), cache=cache, use_cache=True)
                tokens.append(int(output.logits[0, -1].argmax()))
            decode_s = self.clock() - started
        return {
            "prefill_s": prefill_s,
            "decode_s": decode_s,
            "kv_bytes": report.kv_bytes,
            "overhead_bytes": report.overhead_bytes,
            "kept": kept,
            **self._written(tokens),
        }

    def _written(self, tokens: Sequence[int]) -> Answer:
        return {"tokens": list(tokens), "text": str(self.loaded.tokenizer.decode(list(tokens)))}

    def look(self, request: Request) -> Answer:
        """Kept tokens, time of compressing and responses of many cases, from one prefill.

        ``attach`` does the same work and keeps the same tokens, which `agreement` checks.
        """
        found = {}
        cases = {name: ALL[name] for name in request["cases"]}
        by = {name: bound(case, request["slots"], case.sinks, case.recent) for name, case in cases.items()}
        tokenizer = self.loaded.tokenizer
        filled = prefill(
            self.loaded.model, request["ids"], needs_of(list(by.values())), sinks=0, recent=0, vocabulary=tokenizer
        )
        for name, case in cases.items():
            # Cases protect different tokens, which an observation carries.
            seen = {
                layer: replace(obs, protected=protect(obs.state.valid, case.sinks, case.recent))
                for layer, obs in filled.observations.items()
            }
            own = replace(filled, observations=seen)
            started = self.clock()
            states = own.compressed_states(by[name])
            compress_s = self.clock() - started
            tokens = greedy(self.loaded.model, own.cache_of(states), own.logits, request["new_tokens"])
            kept = kept_positions(list(states.values()))
            found[name] = {"kept": kept, "compress_s": compress_s, **self._written(tokens)}
        return {"cases": found}

    def whole(self, request: Request) -> Answer:
        """All rows as kvfw's runner makes them: one prefill, a compression per row, decoding in batches."""
        rows = [
            Row(RowKey(MATCHED[name].compose, f"slots={slots}"), bound(MATCHED[name], slots, WHOLE_SINKS, WHOLE_RECENT))
            for slots in request["slots"]
            for name in request["cases"]
        ]
        needs = needs_of([row.compressor for row in rows if row.compressor is not None])
        tools = Tools(self.loaded, SentenceEncoder())
        started = self.clock()
        filled = prefill(self.loaded.model, request["ids"], needs, sinks=WHOLE_SINKS, recent=WHOLE_RECENT)
        written = [
            len(answer.response.tokens)
            for batch in batches(rows)
            for answer in answers(filled, batch, (), request["new_tokens"], tools)
        ]
        seconds = self.clock() - started
        return {"seconds": seconds, "new_tokens": sum(written)}

    def peak(self, request: Request) -> Answer:
        """Most memory of one prefill above what was held before, after a short one to warm up."""
        model, ids = self.loaded.model, torch.tensor([request["ids"]])

        def plain(tokens: torch.Tensor) -> object:
            cache = DynamicCache()
            model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
            return cache

        def pressed(tokens: torch.Tensor) -> object:
            with self._attached(MATCHED[request["case"]], min(request["slots"], tokens.shape[1] // 2)) as cache:
                model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
            return cache

        case = request["case"]
        if case in PLAIN:
            model.set_attn_implementation(PLAIN[case])
        work = plain if case in PLAIN else pressed
        work(ids[:, :256])
        return {"peak_bytes": peak_bytes(lambda: work(ids))}


if __name__ == "__main__":
    side = Side()
    with torch.inference_mode():
        serve(lambda request: getattr(side, request["do"])(request))
