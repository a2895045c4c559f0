"""`python -m carme_containers NAME`: how `carme up`, which imports no sibling, gets an image."""

import sys

from carme.config import load
from carme.errors import CarmeError
from carme.system.files import cache_dir
from carme_containers.publication import ensure_image

try:
    ensure_image(sys.argv[1], load(), cache_dir(), lambda line: print(line, flush=True))
except CarmeError as error:
    sys.exit(str(error))
