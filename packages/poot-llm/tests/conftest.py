import sys
from pathlib import Path

# importlib mode puts no test folder on the path; the names of our helpers are unique.
sys.path.insert(0, str(Path(__file__).parent))
