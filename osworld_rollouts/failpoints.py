"""Places where a test may kill or stop this process. Without the environment variable every call is one comparison.

`ROLLOUTS_FAILPOINT` names a file. While it exists, its one line `KILL act-before-dispatch /x1/t2/o0` says: the first process that
reaches this place with a detail of this ending takes the file away and sends itself this signal. So it happens once, however many
workers there are and however often they are started again.

| place | detail | between |
| --- | --- | --- |
| provision-started | execution id | |
| act-started, act-before-dispatch | operation id | dispatched, landed |
| act-after-landing | operation id | landed, observed |
| act-after-observation, act-after-record | operation id | observed, returned |
| prepare-started, setup-before-dispatch | execution id, operation id | dispatched, landed |
| setup-after-landing, prepare-after-setup | operation id, execution id | landed, observed |
| prepare-after-observation, prepare-after-record | execution id | observed, returned |
| post-started, post-before-dispatch | execution id, operation id | dispatched, landed |
| post-after-landing, post-after-steps, post-after-record | operation id, execution id | landed, returned |
| model-before-send, model-after-reply, model-after-journal, model-after-record | execution id/t<turn> | sent, received, journalled, returned |
| teardown-started | lease id | |
| evaluate-started, evaluate-after-verdict, evaluate-after-record | execution id | the verdict, its record, returned |
| evaluate-before-dispatch, evaluate-after-landing | operation id | the evaluator's own commands |
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "ROLLOUTS_FAILPOINT"
_FILE = os.environ.get(VARIABLE)


def reach(place: str, detail: str = "") -> None:
    """Die or stop here if this is the place that the file names."""
    if _FILE is not None:
        _look(Path(_FILE), place, detail)


def _look(file: Path, place: str, detail: str) -> None:
    try:
        number, wanted, *ending = file.read_text().split()
        if wanted != place or not detail.endswith("".join(ending)):
            return
        file.rename(file.with_suffix(".fired"))
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.Signals[f"SIG{number}"])
