import json, hashlib
from dataclasses import dataclass
from pathlib import Path
from pretok.errors import *
TOKENIZER_FILE="tokenizer.json"
@dataclass(frozen=True)
class Vocabulary:
    path: Path
    size: int
    eod_id: int
    fingerprint: str
    def token_bytes(self, i):
        from tokenizers import Tokenizer
        return Tokenizer.from_file(str(self.path)).id_to_token(i).encode()
def load_vocab(path, eod="<|endoftext|>"):
    path=Path(path)
    if path.is_dir(): path=path/TOKENIZER_FILE
    raw=path.read_bytes(); d=json.loads(raw)
    added={t["content"]:t["id"] for t in d["added_tokens"]}
    v=d["model"]["vocab"]
    return Vocabulary(path, max(max(v.values()),max(added.values()))+1, eod if isinstance(eod,int) else added[eod], hashlib.blake2b(raw,digest_size=16).hexdigest())
