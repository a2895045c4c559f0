"""How `carme up` and `carme down --purge`, which import no sibling, use this package.

`python -m carme_containers NAME` makes the image NAME; `--remove-build-user` undoes the rest.
"""

import sys

from carme.config import load
from carme.errors import CarmeError
from carme.system.files import cache_dir
from carme_containers.build_user import remove_build_user
from carme_containers.publication import ensure_image

try:
    if sys.argv[1] == "--remove-build-user":
        remove_build_user()
        sys.exit()
    ensure_image(sys.argv[1], load(), cache_dir(), lambda line: print(line, flush=True))
except CarmeError as error:
    sys.exit(str(error))
