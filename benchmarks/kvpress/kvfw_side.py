"""The kvfw side. Runs in kvfw's virtual environment; see compare.py."""

import time
from fractions import Fraction
from typing import Any

import torch
from cases import ALL, MATCHED, WHOLE_RECENT, WHOLE_SINKS, Case
from resident import peak_bytes
from transformers import DynamicCache
from wire import Answer, Request, serve

import kvfw
from kvfw.core.budget import Amount
from kvfw.core.compressor import compressor
from kvfw.core.observation import Needs
from kvfw.core.parts import Kind
from kvfw.core.records import RowKey
from kvfw.core.spec import build_part
from kvfw.model.decode import end_tokens
from kvfw.model.embedded import ensure_embedded
from kvfw.model.prefill import prefill
from kvfw.model.sentence import SentenceEncoder
from kvfw.runner.answers import Tools, answers, batches
from kvfw.runner.prepare import Row


class Side:
    """Holds the model; every method answers one kind of request."""

    def load(self, request: Request) -> Answer:
        """Loads the model from kvfw's own folder and names that folder and the versions."""
        torch.set_num_threads(request["threads"])
        folder = ensure_embedded("smollm2-135m")
        self.loaded = kvfw.load_model(str(folder), dtype="float32", device="cpu", attn_implementation="sdpa")
        import transformers

        versions = {"kvfw": kvfw.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
        return {"folder": str(folder), "versions": versions}

    def prompts(self, request: Request) -> Answer:
        """Token ids of the task's prompts."""
        task = build_part(Kind.TASK, "niah", kvfw.default_registry())
        assert isinstance(task, kvfw.Task)
        made = []
        for tokens, depth in request["grid"]:
            prompt = task.prompt(self.loaded.tokenizer, kvfw.Trial(tokens, depth, 0))
            made.append({"tokens": tokens, "depth": depth, "ids": list(prompt.input_ids), "answer": prompt.answer})
        return {"prompts": made}

    def plain(self, request: Request) -> Answer:
        """A prefill without kvfw."""
        self.loaded.model.set_attn_implementation(request["attention"])
        ids = torch.tensor([request["ids"]])
        started = time.perf_counter()
        output = self.loaded.model(input_ids=ids, cache=DynamicCache(), use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - started
        self.loaded.model.set_attn_implementation("sdpa")
        best = output.logits[0, -1].topk(5)
        return {"prefill_s": seconds, "best": best.indices.tolist(), "logits": best.values.tolist()}

    def _attached(self, case: Case, slots: int) -> Any:
        return kvfw.attach(self.loaded.model, case.compose, slots=slots, sinks=case.sinks, recent=case.recent)

    def one(self, request: Request) -> Answer:
        """Prefill under ``attach``, what is held after it, and greedy tokens."""
        case, model, ids = ALL[request["case"]], self.loaded.model, torch.tensor([request["ids"]])
        ends = end_tokens(model)
        with self._attached(case, request["slots"]) as cache:
            started = time.perf_counter()
            output = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            prefill_s = time.perf_counter() - started
            report = cache.report()
            states = [cache.state(i) for i in range(len(cache.layers))]
            kept = [[s.positions[0, h][s.valid[0, h]].long().tolist() for h in range(s.keys.shape[1])] for s in states]
            del states
            started = time.perf_counter()
            tokens = [int(output.logits[0, -1].argmax())]
            while len(tokens) < request["new_tokens"] and tokens[-1] not in ends:
                output = model(input_ids=torch.tensor([tokens[-1:]]), cache=cache, use_cache=True)
                tokens.append(int(output.logits[0, -1].argmax()))
            decode_s = time.perf_counter() - started
        return {
            "prefill_s": prefill_s,
            "inside_s": report.compress_s,
            "decode_s": decode_s,
            "kv_bytes": report.kv_bytes,
            "overhead_bytes": report.overhead_bytes,
            "kept": kept,
            "tokens": tokens,
            "text": str(self.loaded.tokenizer.decode(tokens, skip_special_tokens=True)),
        }

    def whole(self, request: Request) -> Answer:
        """All rows as kvfw's runner makes them: one prefill, a compression per row, decoding in batches."""
        rows = []
        for name in request["cases"]:
            for slots in request["slots"]:
                composition = kvfw.parse(MATCHED[name].compose)
                amount = Amount("slots", Fraction(slots))
                by = compressor(composition, amount, sinks=WHOLE_SINKS, recent=WHOLE_RECENT)
                rows.append(Row(RowKey(str(composition), str(amount)), by))
        rows.sort(key=lambda row: row.key.amount)
        tools = Tools(self.loaded, SentenceEncoder())
        started = time.perf_counter()
        needs = Needs()
        for row in rows:
            assert row.compressor is not None
            needs = needs | row.compressor.needs
        filled = prefill(self.loaded.model, request["ids"], needs, sinks=WHOLE_SINKS, recent=WHOLE_RECENT)
        written = [
            answer.response.tokens
            for batch in batches(rows)
            for answer in answers(filled, batch, (), request["new_tokens"], tools)
        ]
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "prefill_s": filled.seconds, "new_tokens": sum(map(len, written))}

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

        work = plain if request["case"] is None else pressed
        work(ids[:, :256])
        return {"peak_bytes": peak_bytes(lambda: work(ids))}


if __name__ == "__main__":
    side = Side()
    with torch.inference_mode():
        serve(lambda request: getattr(side, request["do"])(request))
