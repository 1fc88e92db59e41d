"""lm-eval itself on the model ``kvfw``, with the embedded model and task files of ours: `make lm-eval` runs this file.

It is no `test_*.py`, because the environment of the other tests does not contain lm-eval.
"""

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from kvfw.cli.main import run
from kvfw.errors import OptionError
from kvfw.harness.launch import MODEL as MODEL_OBJECT
from kvfw.harness.lm import CompressedLM
from kvfw.model.load.load import LoadedModel

STORY = (
    "The boat was called Patient Heron. It sailed at noon with nine men and a goat on board. The keeper of the "
    "lighthouse was called Ada. She had a red lamp, two oars, and a rope of forty fathoms, and on the first day of the "
    "storm she counted the ships that came in: three in the morning, and two more after the bells had rung. "
)
QUESTIONS = [
    {
        "text": STORY,
        "question": "What was the boat called?",
        "choices": ["Patient Heron", "Red Lamp", "Ada"],
        "answer": 0,
    },
    {"text": STORY, "question": "Who kept the lighthouse?", "choices": ["Patient Heron", "a goat", "Ada"], "answer": 2},
    {"text": STORY, "question": "How many oars had she?", "choices": ["two", "nine", "forty"], "answer": 0},
]
PROMPT = "{{text}}\nQuestion: {{question}}\nAnswer:"
KINDS: dict[str, dict[str, Any]] = {
    "story_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": PROMPT,
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "story_answer": {
        "output_type": "generate_until",
        "doc_to_text": PROMPT,
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
    "story_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}
MODEL = ["--model", "kvfw", "--model_args"]


@pytest.fixture(scope="module", autouse=True)
def _no_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is asked of the hub; prepared data sets go to a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files of tasks by name."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "story.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    for name, kind in KINDS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **source, **kind}))
    return {name: str(folder / f"{name}.yaml") for name in KINDS}


def results(folder: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The results file of a run, and every task's answers in the order of its documents."""
    (file,) = folder.rglob("results_*.json")
    answers = dict[str, list[Any]]()
    for path in folder.rglob("samples_*.jsonl"):
        samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: int(sample["doc_id"]))
        answers[path.name.removeprefix("samples_").rpartition("_")[0]] = [sample["resps"] for sample in samples]
    return json.loads(file.read_text()), answers


def evaluated(folder: Path, model_args: str, *tasks: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """A run by the command line."""
    command = ["lm-eval", *MODEL, model_args, "--tasks", ",".join(tasks), "--output_path", str(folder), "--log_samples"]
    assert run(command) == 0
    return results(folder)


def likelihoods(answers: list[Any]) -> list[float]:
    return [float(pair[0][0]) for choices in answers for pair in choices]


@pytest.fixture(scope="module")
def whole(
    tasks: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """At ratio 1; commas and parentheses in the composition reach kvfw as written."""
    chosen = "pretrained=smollm2-135m,compose=snapkv(window=16,kernel=3)@adakv,ratio=1,recent=16"
    folder = tmp_path_factory.mktemp("whole")
    return evaluated(folder, chosen, tasks["story_choice"], tasks["story_answer"])


@pytest.fixture(scope="module")
def eighth(
    tasks: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """At ratio 8, by way of JSON."""
    chosen = {"pretrained": "smollm2-135m", "compose": "kvzip@global", "ratio": 8, "recent": 8}
    folder = tmp_path_factory.mktemp("eighth")
    return evaluated(folder, json.dumps(chosen), tasks["story_choice"], tasks["story_answer"])


def test_at_ratio_1_it_equals_hf(
    whole: tuple[dict[str, Any], dict[str, list[Any]]], tasks: dict[str, str], smollm: LoadedModel
) -> None:
    hf = HFLM(pretrained=smollm.model, tokenizer=smollm.tokenizer)
    found = lm_eval.simple_evaluate(hf, tasks=[tasks["story_choice"], tasks["story_answer"]], bootstrap_iters=0)
    ours, answers = whole
    wanted = found["samples"]
    assert likelihoods(answers["story_choice"]) == pytest.approx(
        [pair[0][0] for sample in wanted["story_choice"] for pair in sample["resps"]], abs=1e-4
    )
    assert answers["story_answer"] == [sample["resps"] for sample in wanted["story_answer"]]
    for task, metric in (("story_choice", "acc,none"), ("story_answer", "exact_match,none")):
        assert ours["results"][task][metric] == found["results"][task][metric]


def test_at_ratio_8_likelihoods_differ_and_the_size_is_told(
    whole: tuple[dict[str, Any], dict[str, list[Any]]], eighth: tuple[dict[str, Any], dict[str, list[Any]]]
) -> None:
    pairs = zip(likelihoods(whole[1]["story_choice"]), likelihoods(eighth[1]["story_choice"]), strict=True)
    assert min(abs(x - y) for x, y in pairs) > 1e-2
    told = eighth[0]["config"]["kvfw"]
    assert (told["compose"], told["amount"], told["sinks"], told["recent"]) == ("kvzip@global", "ratio=8", 4, 8)
    for task in ("story_choice", "story_answer"):
        # Three contexts, each compressed once, whatever its number of choices.
        size = told["realised"][task]
        assert (size["contexts"], size["contexts_compressed"]) == (3, 3)
        assert size["slots_per_head"] < size["tokens"] / 4
        assert size["size_ratio"] == pytest.approx(size["tokens"] / size["slots_per_head"], rel=0.01)
        assert whole[0]["config"]["kvfw"]["realised"][task]["size_ratio"] == 1


@pytest.mark.parametrize(
    ("recent", "task", "said"),
    [
        (16, "story_rolling", "error: task story_rolling asks for the likelihood of whole texts"),
        (200, "story_choice", "error: nothing in task story_choice would be compressed"),
    ],
)
def test_a_task_without_anything_to_compress_is_one_error(
    recent: int, task: str, said: str, tasks: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = f"pretrained=smollm2-135m,compose=snapkv,ratio=4,recent={recent}"
    assert run(["lm-eval", *MODEL, chosen, "--tasks", tasks[task]]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_composition_cut_by_lm_eval_is_one_error() -> None:
    """In a script lm-eval cuts a text of model_args at every comma."""
    chosen = "pretrained=smollm2-135m,compose=snapkv(window=16,kernel=3)@adakv,ratio=4"
    with pytest.raises(OptionError, match=r"compose arrived as .* simple_evaluate a dict"):
        CompressedLM.create_from_arg_string(chosen)


def test_versions_that_read_entry_points_get_the_same_model() -> None:
    assert EntryPoint("kvfw", MODEL_OBJECT, "lm_eval.models").load() is CompressedLM


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lm-eval", "--config", "nothing.yaml", "--model", "kvfw"]) == 1
    assert "error: lm-eval cannot read or write a file: Config file not found" in capsys.readouterr().err


def test_several_beams_are_refused_before_anything_is_written() -> None:
    """Only requests are looked at."""
    request = Instance("generate_until", {}, ("a context", {"num_beams": 4}), 0, metadata=("story_answer", 0, 1))
    with pytest.raises(OptionError, match=r"task story_answer sets num_beams .* Say num_beams=1"):
        CompressedLM.generate_until(object.__new__(CompressedLM), [request])
