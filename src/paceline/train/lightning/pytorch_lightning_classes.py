"""Our classes for the package `pytorch_lightning`: those of `lightning_classes`, with the bases of this package.

Lightning comes as two packages that accept only their own classes. The code differs in the name of the package only.
"""

import pkgutil

_source = pkgutil.get_data(__package__, "lightning_classes.py")
assert _source is not None
exec(compile(_source.replace(b"lightning.pytorch", b"pytorch_lightning"), __file__, "exec"))
