"""The commands of `carme up` and `carme down --purge`, which do not import this package.

`python -m carme_containers NAME` builds and publishes the image NAME. `--remove-build-user` removes
the user that builds images.
"""

import sys

from carme.config import load
from carme.errors import CarmeError
from carme.system.files import cache_dir
from carme_containers.build_environment import remove_build_user
from carme_containers.publisher import ensure_image

try:
    if sys.argv[1] == "--remove-build-user":
        remove_build_user()
        sys.exit()
    ensure_image(sys.argv[1], load(), cache_dir(), lambda line: print(line, flush=True))
except CarmeError as error:
    sys.exit(str(error))
