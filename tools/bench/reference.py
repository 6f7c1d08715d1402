"""Print the seconds that the reference implementation takes to encode the text:
the first time, and the best of five after it. tokenizers.sh runs it."""

import pathlib
import sys
import time

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.no_truncation()
text = pathlib.Path(sys.argv[2]).read_text(errors="replace")
pieces = [text[i : i + 4096] for i in range(0, len(text), 4096)]
tokenizer.encode("warm")
times = []
for _ in range(6):
    start = time.perf_counter()
    for piece in pieces:
        tokenizer.encode(piece)
    times.append(time.perf_counter() - start)
print(times[0], min(times[1:]))
