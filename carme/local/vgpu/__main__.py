"""`python -m carme.local.vgpu` is `carme-vgpu`."""

from carme.local.vgpu.commands import main

main()
