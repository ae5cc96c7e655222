"""`train generate`: continue a text with the newest checkpoint of a run, to see what the model has learned.

Input: the folder of a run and a prompt. Output: the prompt and its continuation, on standard output. There is no cache
of keys and values, so each token costs a pass over all tokens before it; to serve a model, `train export` it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from pretok.base.errors import UsageError
from pretok.tokenizer.vocabulary import GENERATION_FILE, TOKENIZER_FILE
from train.checkpoint.export import mean_weights, tokenizer_files
from train.checkpoint.meta import find_checkpoints, read_meta
from train.config import command_parser, whole_number
from train.model.transformer import Decoder


def main(arguments: Sequence[str]) -> None:
    """Run `train generate`."""
    parser = command_parser(
        "train generate",
        "Continue a text with a run's newest checkpoint, to see what it has learned.",
        '  train generate RUN "Il mare"',
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("prompt", metavar="TEXT", help="the text to continue")
    parser.add_argument("--step", type=whole_number, help="step of the checkpoint (default: the newest)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer of the shards (default: their copy)")
    parser.add_argument("--tokens", type=whole_number, default=100, help="tokens to add (default: 100)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: always the most likely token (default: 0.8)"
    )
    parser.add_argument("--seed", type=int, help="random seed of the sampling (default: 0)")
    space = parser.parse_args(list(arguments))
    if space.seed is not None and space.temperature == 0:
        raise UsageError("--seed: nothing reads it with --temperature 0; leave it out")
    checkpoint = find_checkpoints(space.run, space.step)[-1]
    print(
        generate(checkpoint, space.prompt, space.tokens, space.temperature, space.seed or 0, space.tokenizer)
    )


def generate(
    checkpoint: Path, prompt: str, tokens: int, temperature: float, seed: int, tokenizer_path: Path | None
) -> str:
    """Return `prompt` and at most `tokens` further tokens as text, ending early at an EOD or the end of a turn.

    temperature: logits are divided by it before a token is sampled; 0 takes the most likely one. The model sees the
    last seq_len tokens. tokenizer_path: None for the copy in the shards. Raises UsageError (no tokenizer, an empty
    prompt, a negative temperature), IntegrityError (a damaged checkpoint), MismatchError (another tokenizer).
    """
    from tokenizers import Tokenizer

    if not temperature >= 0:  # nan too
        raise UsageError(f"--temperature is {temperature}; it must be 0 or more")
    meta = read_meta(checkpoint)
    files = tokenizer_files(meta, tokenizer_path)
    tokenizer = Tokenizer.from_str(files[TOKENIZER_FILE].decode())
    ends = json.loads(files[GENERATION_FILE])["eos_token_id"]
    begin = [] if meta.bos_id is None else [meta.bos_id]
    ids = [*begin, *tokenizer.encode(prompt, add_special_tokens=False).ids]
    if not ids:
        raise UsageError("the prompt is empty: give some words to continue")
    config = meta.identity.model
    model = Decoder(config)
    kinds, value = mean_weights([checkpoint], config)
    model.load_state_dict({name: value(name) for name in kinds})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    draw = torch.Generator().manual_seed(seed % 2**64)  # torch takes no other
    with torch.no_grad():  # not inference_mode: the cached rotary table could not be used for training later
        for _ in range(tokens):
            seen = torch.tensor([ids[-config.seq_len :]], device=device)
            logits = model(seen)[0, -1, : config.vocab_size].float().cpu()  # the other columns are padding
            if temperature:
                chosen = torch.multinomial((logits / temperature).softmax(0), 1, generator=draw)
            else:
                chosen = logits.argmax()
            if int(chosen) in (ends if isinstance(ends, list) else [ends]):
                break
            ids.append(int(chosen))
    text: str = tokenizer.decode(ids[len(begin) :], skip_special_tokens=False)
    return text
