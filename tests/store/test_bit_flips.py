"""One flipped bit in any file of any kind: the right answer or a clear error, never a wrong one."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from bit_flips import APPEND, CUT, Matrix, kinds

from long_form import TURN, short_or_long


@pytest.mark.slow
def test_a_flipped_bit_in_any_kind_of_file_is_found_or_changes_no_answer(tmp_path):
    matrix = Matrix(tmp_path)

    # Two of three places in each kind of file, the next run begins at another.
    count = short_or_long(1, 9) * len(kinds())
    trials = list(matrix.trials(count, seed=7, first=TURN * count, every=short_or_long(8, 1)))

    assert [trial for trial in trials if trial.bad] == []
    assert {trial.kind for trial in trials} == set(kinds())
    assert {trial.damage.split(":")[0] for trial in trials} == {"flipped", CUT, APPEND}
    outcomes = Counter((trial.kind, trial.outcome) for trial in trials)
    # The hint says nothing that is relied upon; everything else is under a checksum.
    assert {kind for kind, outcome in outcomes if outcome == "harmless"} <= {"hint"}
