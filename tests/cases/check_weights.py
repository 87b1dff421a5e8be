#!/usr/bin/env python3
"""Usage: check_weights.py PROBE. The malformed models of make_malformed.py, judged by its own rules.

PROBE only opens weights, so the faults of a model's configuration and of a tokenizer are not its to find: those
four must open, and `inferd inspect` is judged on all (tests/e2e)."""
import os
import subprocess
import sys
import tempfile

LATER = {'gguf_block_count_zero.gguf', 'gguf_kv_heads_zero.gguf', 'gguf_scores_wrong_type.gguf',
         'gguf_eos_out_of_range.gguf'}


def main():
    generator = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'make_malformed.py')
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([sys.executable, generator, folder, '--run', sys.argv[1] + ' {path}'],
                             stdout=subprocess.PIPE, text=True).stdout
    rows = [line.split(None, 1) for line in out.splitlines()[:-1]]
    wrong = [row for row in rows if
             (row[1] != 'ok') != (row[0] in LATER) or
             (row[0] in LATER and not row[1].startswith('a faulty model was taken'))]
    for name, why in wrong:
        print('%s: %s' % (name, why))
    print('%d models, %d judged wrong' % (len(rows), len(wrong)))
    return 1 if wrong or len(rows) < 31 else 0


if __name__ == '__main__':
    sys.exit(main())
