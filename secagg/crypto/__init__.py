"""The building blocks of secagg. Each works without the others; docs/building-blocks.md has examples.

The names in `__all__` are public and stable. Everything else in this package may change at any time.
"""

from secagg.crypto.box import BOX_OVERHEAD, box_keys, seal, unseal
from secagg.crypto.clipping import SegmentNoise
from secagg.crypto.fixedpoint import Encoding, FixedPoint, Integers
from secagg.crypto.keys import HASH_BYTES, KEY_BYTES, SIGNATURE_BYTES, AgreementKey, Identity, hkdf, verify
from secagg.crypto.noise import MOST_SIGMA, discrete_gaussian
from secagg.crypto.prg import MASK_KEY_BYTES, add_masks, backend, mask, use_backend
from secagg.crypto.segments import Loss, Losses, Segment, Segments
from secagg.crypto.shamir import SECRET_BYTES, SHARE_BYTES, Share, combine, split

__all__ = ["BOX_OVERHEAD", "box_keys", "seal", "unseal"]
__all__ += ["Encoding", "FixedPoint", "Integers", "Loss", "Losses", "Segment", "Segments"]
__all__ += ["HASH_BYTES", "KEY_BYTES", "SIGNATURE_BYTES", "AgreementKey", "Identity", "hkdf", "verify"]
__all__ += ["MOST_SIGMA", "SegmentNoise", "discrete_gaussian"]
__all__ += ["MASK_KEY_BYTES", "add_masks", "backend", "mask", "use_backend"]
__all__ += ["SECRET_BYTES", "SHARE_BYTES", "Share", "combine", "split"]
