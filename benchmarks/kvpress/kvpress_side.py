"""The kvpress side. Runs in kvpress's virtual environment; see compare.py.

Used as its documentation says: a press is a context manager around the prefill, and later tokens are given their
positions by hand, because the length of a pressed cache says nothing about them.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import kvpress  # type: ignore[import-not-found, unused-ignore]  # absent where the project is type-checked
import torch
import transformers
from cases import ALL, MATCHED, PLAIN, Case, Press, removed_fraction
from resident import peak_bytes
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from wire import CLOCKS, Answer, Request, serve


def pressed(case: Case, tokens: int, slots: int) -> Any:
    """The press of a case that keeps exactly so many slots."""
    press = built(case.press)
    press.compression_ratio = removed_fraction(tokens, slots)
    return press


def built(press: Press) -> Any:
    """The press, around the one it wraps."""
    inner = {} if press.inner is None else {"press": built(press.inner)}
    return getattr(kvpress, press.name)(**inner, **press.options)


def time_hook(press: Any, clock: Callable[[], float]) -> list[float]:
    """Seconds of every call of the press's hook, which compresses a layer; the list fills as they happen."""
    spent: list[float] = []
    hook = press.forward_hook

    def timed(*arguments: Any) -> Any:
        started = clock()
        output = hook(*arguments)
        spent.append(clock() - started)
        return output

    press.forward_hook = timed
    return spent


def watch_kept(press: Any) -> list[list[list[int]]]:
    """Positions that a press keeps, by layer and head: a press does not say, so stored keys are looked up."""
    kept: list[list[list[int]]] = []
    compress = press.compress

    def watched(module: Any, hidden: Any, keys: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        few_keys, few_values = compress(module, hidden, keys, *rest)
        layer = []
        for all_rows, rows in zip(keys[0].numpy(), few_keys[0].numpy(), strict=True):
            place = {row.tobytes(): at for at, row in enumerate(all_rows)}
            assert len(place) == len(all_rows), "two tokens have the same key; positions cannot be told apart"
            layer.append(sorted(place[row.tobytes()] for row in rows))
        kept.append(layer)
        return few_keys, few_values

    press.compress = watched
    return kept


def unmasked(model: Any, kept: list[list[list[int]]], tokens: int) -> list[list[list[int]]]:
    """What attention still reads: presses with budgets per head keep every token and mask some of them."""
    whole = [[list(range(tokens))] * model.config.num_key_value_heads for _ in model.model.layers]
    found = []
    for layer, heads in zip(model.model.layers, kept or whole, strict=True):
        masked = getattr(layer.self_attn, "masked_key_indices", None)
        gone = [set[int]() for _ in heads]
        if masked is not None:
            for head, token in zip(masked[1].tolist(), masked[2].tolist(), strict=True):
                gone[head].add(token)
        found.append([sorted(set(head) - out) for head, out in zip(heads, gone, strict=True)])
    return found


def unmask(model: Any) -> None:
    """Forgets the masks of the press before; kvpress leaves them."""
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None


class Side:
    """Holds the model; every method answers one kind of request."""

    def load(self, request: Request) -> Answer:
        """Loads the model from the folder that kvfw named."""
        self.clock = CLOCKS[request["clock"]]
        torch.set_num_threads(request["threads"])
        transformers.utils.logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(
            request["folder"], dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(request["folder"])
        return {"versions": {name: version(name) for name in ("kvpress", "transformers", "torch")}}

    def _prefill(self, ids: list[int], press: Any, attention: str) -> tuple[Any, torch.Tensor, float]:
        self.model.set_attn_implementation(attention)
        cache, tokens = DynamicCache(), torch.tensor([ids])
        started = self.clock()
        if press is None:
            output = self.model(input_ids=tokens, past_key_values=cache, logits_to_keep=1)
        else:
            with press(self.model):
                output = self.model(input_ids=tokens, past_key_values=cache, logits_to_keep=1)
        seconds = self.clock() - started
        self.model.set_attn_implementation("sdpa")
        return cache, output.logits[0, -1], seconds

    def _decode(self, cache: Any, logits: torch.Tensor, length: int, new_tokens: int) -> list[int]:
        tokens = [int(logits.argmax())]
        while len(tokens) < new_tokens:
            position = torch.tensor([[length + len(tokens) - 1]])
            fed = torch.tensor([tokens[-1:]])
            output = self.model(input_ids=fed, past_key_values=cache, position_ids=position)
            tokens.append(int(output.logits[0, -1].argmax()))
        return tokens

    def plain(self, request: Request) -> Answer:
        """A prefill without a press."""
        _, logits, seconds = self._prefill(request["ids"], None, request["attention"])
        best = logits.topk(5)
        return {"prefill_s": seconds, "best": best.indices.tolist(), "logits": best.values.tolist()}

    def one(self, request: Request) -> Answer:
        """Prefill under a press, what is held after it, and greedy tokens. ``look``: also which tokens were kept."""
        ids, case = request["ids"], ALL[request["case"]]
        press = pressed(case, len(ids), request["slots"])
        watched = watch_kept(press) if request["look"] and hasattr(press, "compress") else []
        spent = time_hook(press, self.clock)
        unmask(self.model)
        cache, logits, prefill_s = self._prefill(ids, press, case.attention)
        kept = unmasked(self.model, watched, len(ids)) if request["look"] else []
        held = {x.untyped_storage().data_ptr(): x for layer in cache.layers for x in (layer.keys, layer.values)}
        kv_bytes = sum(x.untyped_storage().nbytes() for x in held.values())
        del held
        started = self.clock()
        tokens = self._decode(cache, logits, len(ids), request["new_tokens"])
        decode_s = self.clock() - started
        unmask(self.model)
        return {
            "prefill_s": prefill_s,
            "inside_s": sum(spent),
            "decode_s": decode_s,
            "kv_bytes": kv_bytes,
            "overhead_bytes": 0,
            "kept": kept,
            "tokens": tokens,
            "text": str(self.tokenizer.decode(tokens)),
        }

    def whole(self, request: Request) -> Answer:
        """Every row by itself: a press acts while the prompt is read, so every row reads the prompt again."""
        rows = []
        for slots in request["slots"]:
            for name in request["cases"]:
                ids, case = request["ids"], MATCHED[name]
                started = self.clock()
                cache, logits, _ = self._prefill(ids, pressed(case, len(ids), slots), case.attention)
                written = self._decode(cache, logits, len(ids), request["new_tokens"])
                seconds = self.clock() - started
                rows.append({"case": name, "slots": slots, "seconds": seconds, "new_tokens": len(written)})
        return {"rows": rows}

    def peak(self, request: Request) -> Answer:
        """Most memory of one prefill above what was held before, after a short one to warm up."""
        case = MATCHED.get(request["case"])
        attention = PLAIN[request["case"]] if case is None else case.attention

        def work(ids: list[int]) -> object:
            press = None if case is None else pressed(case, len(ids), min(request["slots"], len(ids) // 2))
            return self._prefill(ids, press, attention)

        work(request["ids"][:256])
        return {"peak_bytes": peak_bytes(lambda: work(request["ids"]))}


if __name__ == "__main__":
    side = Side()
    with torch.inference_mode():
        serve(lambda request: getattr(side, request["do"])(request))
