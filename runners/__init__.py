"""How a run happens: launchers, the worker on every rank, the driver that compares, the command
line. Nothing imports it.

Importing it pins the names of our packages, as early as our code can run.
"""

import sys
from pathlib import Path

_HOUSE = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, _HOUSE)  # for one import: a user's folder may hold a measurement.py
try:
    from measurement.registry import pin
finally:
    sys.path.remove(_HOUSE)
pin()
