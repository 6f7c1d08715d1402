"""Print the nanoseconds for each byte that another tokenizer takes to encode a
text on as many threads as RAYON_NUM_THREADS says: the first time, and the best of
repeating it for a few seconds. tokenizers.sh runs it.

    reference.py LIBRARY TOKENIZER TEXT
"""

import os
import pathlib
import sys
import time

SECONDS = float(os.environ.get("BENCH_SECONDS", "3"))
PIECE = 4096  # characters


def opened(library, path):
    """A function that encodes a list of texts."""
    if library == "fastokens":
        from fastokens import Tokenizer
        return Tokenizer.from_file(path).encode_batch
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(path)
    t.no_truncation()
    return t.encode_batch_fast  # without offsets, which are not needed here


def main():
    library, path, name = sys.argv[1:]
    text = pathlib.Path(name).read_text(errors="replace")
    size = len(text.encode())
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    encode = opened(library, path)
    encode(["warm"])
    # On one thread piece by piece, which is how a server has them.
    one = os.environ["RAYON_NUM_THREADS"] == "1"
    times = []
    while len(times) < 4 or sum(times) < SECONDS:
        start = time.perf_counter()
        if one:
            for piece in pieces:
                encode([piece])
        else:
            encode(pieces)
        times.append(time.perf_counter() - start)
    print(library, os.environ["RAYON_NUM_THREADS"], *(f"{1e9 * t / size:.3f}" for t in (times[0], min(times[1:]))))


if __name__ == "__main__":
    main()
