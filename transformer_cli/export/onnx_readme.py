"""The README.md that goes with exported ONNX graphs. Called by `onnx`."""

from typing import Any

TEXT = """# {source_language} → {target_language}, as ONNX graphs

Exported by `tfm export --format onnx`. Ids: `<pad>` {pad_id}, `<unk>` {unk_id}, `<s>` {bos_id}, `</s>` {eos_id}.
B sentences, S source and T target positions, P positions decoded before, V = {target_vocabulary_size} target tokens,
{heads} heads of {head_dim}. Batch and lengths are free; S and P + T are at most {max_positions}. Ids are int64, all
else is float32. n stands for the decoder's layer, 0 to {last_layer}.

`encoder.onnx`: once a sentence

| | name | shape | what |
| --- | --- | --- | --- |
| in | `source` | B, S | source ids, then `</s>`, then `<pad>` up to the longest of the batch |
| out | `memory_keys_n`, `memory_values_n` | B, {heads}, S, {head_dim} | what the decoder attends to |

`decoder.onnx`: the next T tokens (1 in a search; a given prefix, or a whole translation to score, at once)

| | name | shape | what |
| --- | --- | --- | --- |
| in | `target` | B, T | target ids; the first is `<s>` |
| in | `source` | B, S | as above |
| in | `memory_keys_n`, `memory_values_n` | B, {heads}, S, {head_dim} | the encoder's |
| in | `past_keys_n`, `past_values_n` | B, {heads}, P, {head_dim} | P = 0 at first, then what came out before |
| out | `logits` | B, T, V | of the token after each |
| out | `keys_n`, `values_n` | B, {heads}, P + T, {head_dim} | the past of the next step |

`<pad>` and `<s>` are never output, and `</s>` is no first token: leave them out of the choice. The training pairs have
up to {max_source_length} tokens; a translation has at most {max_length_ratio} × source tokens + {max_length_extra},
rounded up to a multiple of 16. A beam that moves takes its rows of `past_*` along. `config.json` says all this for
programs. `config.yaml` and `vocab/` are the model's own.

Greedy translation of one sentence, with `pip install {packages}`:

```python
import json, math
import numpy, onnxruntime
{setup}

config = json.load(open("config.json"))
encoder, decoder = (onnxruntime.InferenceSession(f"{{name}}.onnx") for name in ("encoder", "decoder"))
names = [f"{{part}}_{{n}}" for n in range(config["decoder_layers"]) for part in ("keys", "values")]
ids = {encode}
source = numpy.array([[*ids, config["eos_id"]]])
memory = dict(zip([f"memory_{{name}}" for name in names], encoder.run(None, {{"source": source}})))
past = [numpy.zeros((1, config["heads"], 0, config["head_dim"]), "float32") for _ in names]
path = [config["bos_id"]]
limit = config["max_length_ratio"] * len(ids) + config["max_length_extra"]
for _ in range(math.ceil(limit / 16) * 16):
    inputs = {{"target": numpy.array([path[-1:]]), "source": source, **memory}}
    inputs |= {{f"past_{{name}}": value for name, value in zip(names, past)}}
    logits, *past = decoder.run(None, inputs)
    never = [config["pad_id"], config["bos_id"]] + [config["eos_id"]] * (len(path) == 1)
    logits[0, -1, never] = -numpy.inf
    path.append(int(logits[0, -1].argmax()))
    if path[-1] == config["eos_id"]:
        break
ids = [index for index in path if index > config["eos_id"]]
print({decode})
```
"""

# Without anything of ours, where sentencepiece alone gives the ids that the model was trained with.
SENTENCEPIECE = {
    "packages": "numpy onnxruntime sentencepiece",
    "setup": """import sentencepiece

models = [sentencepiece.SentencePieceProcessor(model_file=f"vocab/{side}.model") for side in SIDES]
text = input()""",
    "encode": "models[0].encode(text)",
    "decode": "models[1].decode(ids)",
}
CODECS = {
    "packages": "transformer-cli onnxruntime",
    "setup": """from transformer_cli.config import load_config
from transformer_cli.text.codec import Codecs

codecs = Codecs.load(".", load_config("config.yaml"))
text = input()""",
    "encode": "codecs.source.encode(text)",
    "decode": "codecs.target.decode(ids)",
}


def readme(description: dict[str, Any], sides: tuple[str, str]) -> str:
    """The text, for a folder that config.json describes so; `sides` are the names of the files in vocab/."""
    plain = not description["lowercase"] and description["normalization"] == "none"
    example = SENTENCEPIECE if description["tokenizer"] == "sentencepiece" and plain else CODECS
    parts = {name: text.replace("SIDES", repr(sides)) for name, text in example.items()}
    return TEXT.format(**description, **parts, last_layer=description["decoder_layers"] - 1)
